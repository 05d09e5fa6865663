"""The API's calls as requests, and its answers: what the two clients have in common."""

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import httpx

from topics.errors import TopicsError
from topics.paths import group_path, router_path, topic_path

TIMEOUT_S = 30.0
Record = Mapping[str, Any]  # data, perhaps tag, node, meta, ttl_ms; in a queue also priority, delay_ms or not_before


class ApiError(TopicsError):
    """The server refused. `code` is the stable name of the reason; somebody in between may answer with any other."""

    def __init__(self, status: int, code: str, message: str, detail: Mapping[str, Any]) -> None:
        Exception.__init__(self, f"{status} {code}: {message}")  # whatever the code: it is not ours
        self.status = status
        self.code = code
        self.message = message
        self.detail = dict(detail)

    __repr__ = Exception.__repr__


class Unreachable(Exception):
    """No answer, whether the request took effect or not is unknown."""


class Request(NamedTuple):
    method: str
    path: str
    body: Mapping[str, Any] | bytes | None = None  # bytes: JSON already
    query: Mapping[str, Any] = {}
    wait_s: float = 0.0  # how long the server may take on top of everything else


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """A leased job. Another delivery of the same one is another `Job`."""

    seq: int
    lease_id: str
    deadline: int
    deliveries: int
    ts: int
    data: Any
    tag: str | None = None
    node: str | None = None
    meta: Mapping[str, str] = field(default_factory=dict)
    priority: int = 0
    id: str | None = None  # of queues with `message_ids`

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> "Job":
        return cls(
            fields["$seq"],
            fields["lease_id"],
            fields["deadline"],
            fields["deliveries"],
            fields["$ts"],
            fields["data"],
            fields.get("$tag"),
            fields.get("$node"),
            fields.get("meta", {}),
            fields.get("priority", 0),
            fields.get("$id"),
        )


def put_topic(topic: str, config: Mapping[str, Any]) -> Request:
    return Request("PUT", topic_path(topic), config)


def state(topic: str) -> Request:
    return Request("GET", topic_path(topic))


def remove_topic(topic: str, if_empty: bool) -> Request:
    return Request("DELETE", topic_path(topic), query={"if_empty": "true"} if if_empty else {})


def list_topics(prefix: str, cursor: str) -> Request:
    query = {"prefix": prefix, "cursor": cursor}
    return Request("GET", "/v0/topics", query={name: value for name, value in query.items() if value})


def append(topic: str, records: Sequence[Record], fields: Mapping[str, Any]) -> Request:
    """With a key of its own, unless it has one: it may be sent twice."""
    return Request("POST", topic_path(topic), {"idempotency_key": uuid.uuid4().hex, "records": records, **fields})


def diff(topic: str, from_seq: int, fields: Mapping[str, Any]) -> Request:
    body = dict(fields) if "from_ts" in fields else {"from_seq": from_seq, **fields}
    return Request("POST", topic_path(topic, "diff"), body, wait_s=body.get("wait_ms", 0) / 1000)


def seek(topic: str, ts: int) -> Request:
    return Request("GET", topic_path(topic, "seek"), query={"ts": ts})


def delete(topic: str, selection: Mapping[str, Any]) -> Request:
    return Request("POST", topic_path(topic, "delete"), selection)


def claim(queue: str, node: str, jobs: int, lease_ms: int | None, wait_ms: int) -> Request:
    body: dict[str, Any] = {"node": node, "max": jobs}
    if lease_ms is not None:
        body["lease_ms"] = lease_ms
    if wait_ms:
        body["wait_ms"] = wait_ms
    return Request("POST", topic_path(queue, "claim"), body, wait_s=wait_ms / 1000)


def settle(queue: str, call: str, node: str, jobs: Sequence[Job | int], **fields: Any) -> Request:
    """Ack, nack or extend. Jobs bring their lease ids along; of plain seqs the node alone counts."""
    body: dict[str, Any] = {"node": node, "seqs": [job.seq if isinstance(job, Job) else job for job in jobs], **fields}
    leases = [job.lease_id for job in jobs if isinstance(job, Job)]
    if len(leases) == len(jobs):
        body["lease_ids"] = leases
    return Request("POST", topic_path(queue, call), body)


def nack(queue: str, node: str, jobs: Sequence[Job | int], delay_ms: int, reason: str, penalty: bool) -> Request:
    fields: dict[str, Any] = {"delay_ms": delay_ms}
    if reason:
        fields["reason"] = reason
    if not penalty:
        fields["penalty"] = False
    return settle(queue, "nack", node, jobs, **fields)


def redrive(topic: str, to: str, match: Any, limit: int | None) -> Request:
    body: dict[str, Any] = {"to": to}
    if match is not None:
        body["match"] = match
    if limit is not None:
        body["limit"] = limit
    return Request("POST", topic_path(topic, "redrive"), body, wait_s=15.0)


def put_router(router: str, fields: Mapping[str, Any]) -> Request:
    return Request("PUT", router_path(router), fields)


def router_state(router: str) -> Request:
    return Request("GET", router_path(router))


def remove_router(router: str) -> Request:
    return Request("DELETE", router_path(router))


def list_routers(prefix: str, cursor: str) -> Request:
    query = {"prefix": prefix, "cursor": cursor}
    return Request("GET", "/v0/routers", query={name: value for name, value in query.items() if value})


def put_group(topic: str, group: str, start: Any) -> Request:
    return Request("PUT", group_path(topic, group), {"from": start})


def group_state(topic: str, group: str) -> Request:
    return Request("GET", group_path(topic, group))


def list_groups(topic: str) -> Request:
    return Request("GET", topic_path(topic, "groups"))


def remove_group(topic: str, group: str) -> Request:
    return Request("DELETE", group_path(topic, group))


def group_fetch(topic: str, group: str, fields: Mapping[str, Any]) -> Request:
    """`start` is the API's `from`, which is no name in Python."""
    body = {"from" if name == "start" else name: value for name, value in fields.items() if value is not None}
    return Request("POST", group_path(topic, group, "fetch"), body, wait_s=body.get("wait_ms", 0) / 1000)


def group_ack(topic: str, group: str, seq: int, consumer: str | None) -> Request:
    return Request("POST", group_path(topic, group, "ack"), _with_consumer({"seq": seq}, consumer))


def group_seek(topic: str, group: str, to: Any, consumer: str | None) -> Request:
    return Request("POST", group_path(topic, group, "seek"), _with_consumer({"to": to}, consumer))


def _with_consumer(body: dict[str, Any], consumer: str | None) -> dict[str, Any]:
    return body if consumer is None else body | {"consumer": consumer}


def options(request: Request, timeout_s: float) -> dict[str, Any]:
    """For httpx."""
    timeout = httpx.Timeout(timeout_s, read=timeout_s + request.wait_s)
    made: dict[str, Any] = {"params": dict(request.query), "timeout": timeout}
    if isinstance(request.body, bytes):
        made |= {"content": request.body, "headers": {"content-type": "application/json"}}
    elif request.body is not None:
        made["json"] = request.body
    return made


def read(answer: httpx.Response) -> dict[str, Any]:
    """The body of an answer. Raises ApiError."""
    try:
        body = parse(answer.content)
    except ValueError:
        body = {"error": {"code": "internal", "message": answer.text[:200]}}
    if answer.is_success and isinstance(body, dict):
        return body
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):  # of a proxy, say
        error = {"message": answer.text[:200]}
    code, message = error.get("code", "internal"), error.get("message", "")
    raise ApiError(answer.status_code, code, message, error.get("detail") or {})


def parse(text: bytes) -> Any:
    """JSON as Python has it. A number in somebody's data that Python cannot hold becomes infinite: it must not keep the
    records beside it from being read."""
    try:
        return json.loads(text)
    except ValueError:
        return json.loads(text, parse_int=_whole)


def _whole(digits: str) -> int | float:
    try:
        return int(digits)
    except ValueError:  # Python's bound on digits
        return float(digits)


def retry_after_s(answer: httpx.Response) -> float:
    try:
        return max(0.0, float(answer.headers.get("retry-after", "0")))
    except ValueError:
        return 0.0


def headers_of(key: str | None) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"} if key else {}
