"""The client for programs that wait: one call, one answer."""

import time
from collections.abc import Iterator, Sequence
from typing import Any, Self

import httpx

from topics.client import calls
from topics.client.calls import Job, Record, Request, Unreachable
from topics.client.retries import AGAIN, Retries


class Client:
    def __init__(
        self,
        url: str = "http://127.0.0.1:4000",
        key: str | None = None,
        *,
        retries: Retries | None = None,
        timeout_s: float = calls.TIMEOUT_S,
        http: httpx.Client | None = None,
    ) -> None:
        """`http` is for those who need another transport; it keeps its own headers."""
        self._http = http or httpx.Client(base_url=url, headers=calls.headers_of(key))
        self._retries = retries or Retries()
        self._timeout_s = timeout_s

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    # --- topics ---------------------------------------------------------------------------------------------------

    def put_topic(self, topic: str, **config: Any) -> dict[str, Any]:
        """Create a topic, or change its configuration."""
        return self.send(calls.put_topic(topic, config))

    def state(self, topic: str) -> dict[str, Any]:
        return self.send(calls.state(topic))

    def remove_topic(self, topic: str, *, if_empty: bool = False) -> dict[str, Any]:
        return self.send(calls.remove_topic(topic, if_empty))

    def topics(self, prefix: str = "") -> Iterator[dict[str, Any]]:
        """Every topic, page by page."""
        cursor = ""
        while True:
            page = self.send(calls.list_topics(prefix, cursor))
            yield from page["topics"]
            cursor = page.get("next_cursor", "")
            if not cursor:
                return

    # --- records --------------------------------------------------------------------------------------------------

    def append(self, topic: str, records: Sequence[Record], **fields: Any) -> dict[str, Any]:
        """Append records: `[{"data": …, "tag": …}, …]`. `fields` are those of the API, such as `idempotency_key`."""
        return self.send(calls.append(topic, records, fields))

    def diff(self, topic: str, from_seq: int = 0, **fields: Any) -> dict[str, Any]:
        """Records after a cursor; go on with `next_from_seq`."""
        return self.send(calls.diff(topic, from_seq, fields))

    def delete(self, topic: str, **selection: Any) -> dict[str, Any]:
        """Delete by `before_seq`, `match`, or both."""
        return self.send(calls.delete(topic, selection))

    # --- queues ---------------------------------------------------------------------------------------------------

    def claim(self, queue: str, node: str, max: int = 1, *, lease_ms: int | None = None, wait_ms: int = 0) -> list[Job]:
        answer = self.send(calls.claim(queue, node, max, lease_ms, wait_ms))
        return [Job.read(fields) for fields in answer["claimed"]]

    def ack(self, queue: str, node: str, jobs: Sequence[Job | int]) -> dict[str, Any]:
        return self.send(calls.settle(queue, "ack", node, jobs))

    def nack(self, queue: str, node: str, jobs: Sequence[Job | int], *, delay_ms: int = 0) -> dict[str, Any]:
        return self.send(calls.settle(queue, "nack", node, jobs, delay_ms=delay_ms))

    def extend(
        self, queue: str, node: str, jobs: Sequence[Job | int], *, lease_ms: int, retries: Retries | None = None
    ) -> dict[str, Any]:
        return self.send(calls.settle(queue, "extend", node, jobs, lease_ms=lease_ms), retries)

    # --- requests -------------------------------------------------------------------------------------------------

    def send(self, request: Request, retries: Retries | None = None) -> dict[str, Any]:
        """One request, tried again while it makes sense. Raises ApiError, Unreachable."""
        return calls.read(self.exchange(request, retries))

    def exchange(self, request: Request, retries: Retries | None = None) -> httpx.Response:
        """The same for those who read the answer themselves, also one that says no. Raises Unreachable."""
        retries = retries or self._retries
        began, attempt = time.monotonic(), 0
        while True:
            attempt += 1
            wait_s = 0.0
            try:
                answer = self._http.request(request.method, request.path, **calls.options(request, self._timeout_s))
                if answer.status_code not in AGAIN:
                    return answer
                wait_s = calls.retry_after_s(answer)
            except httpx.TransportError as error:
                failure: Exception = error
                answer = None
            pause = retries.pause(attempt, time.monotonic() - began, wait_s)
            if pause is None:
                if answer is None:
                    raise Unreachable(f"{request.method} {request.path}: {failure!r}") from failure
                return answer
            time.sleep(pause)
