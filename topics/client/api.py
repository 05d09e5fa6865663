"""Every call of the API as a method that waits for its answer; who carries the requests is left open.

`Client` sends them over HTTP, and `topics.open` answers them in the same process. So a program changes from one to
the other in one line.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from topics.client import calls
from topics.client.calls import Job, Record, Request
from topics.client.retries import NEVER, Retries

FOLLOW_WAIT_MS = 30_000


class Api(ABC):
    @abstractmethod
    def send(self, request: Request, retries: Retries | None = None) -> dict[str, Any]:
        """The answer to one request. Raises what the carrier raises for a refusal."""

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
        """Records after a cursor, or with `from_ts` from a time on; go on with `next_from_seq`."""
        return self.send(calls.diff(topic, from_seq, fields))

    def seek(self, topic: str, ts: int) -> dict[str, Any]:
        """Where a time (ms since 1970) is: the first `seq` of then or later, and the `from_seq` that reads it next."""
        return self.send(calls.seek(topic, ts))

    def read(self, topic: str, from_seq: int = 0, **fields: Any) -> Iterator[dict[str, Any]]:
        """Every record after a cursor up to the head, page by page.

        Where records were lost to a cap or a TTL an item `{"tombstone": …}` stands for them.
        """
        while True:
            page = self.diff(topic, from_seq, **fields)
            yield from items_of(page)
            from_seq = page["next_from_seq"]
            fields.pop("from_ts", None)
            if page["caught_up"]:
                return

    def follow(self, topic: str, from_seq: int = 0, **fields: Any) -> Iterator[dict[str, Any]]:
        """As `read`, and then every new record as it comes. Waits for it; ends only when it is told to."""
        while True:
            page = self.diff(topic, from_seq, **{"wait_ms": FOLLOW_WAIT_MS, **fields})
            yield from items_of(page)
            from_seq = page["next_from_seq"]
            fields.pop("from_ts", None)

    def delete(self, topic: str, **selection: Any) -> dict[str, Any]:
        """Delete by `before_seq`, `match`, or both."""
        return self.send(calls.delete(topic, selection))

    # --- queues ---------------------------------------------------------------------------------------------------

    def claim(self, queue: str, node: str, max: int = 1, *, lease_ms: int | None = None, wait_ms: int = 0) -> list[Job]:
        answer = self.send(calls.claim(queue, node, max, lease_ms, wait_ms))
        return [Job.read(fields) for fields in answer["claimed"]]

    def ack(self, queue: str, node: str, jobs: Sequence[Job | int]) -> dict[str, Any]:
        return self.send(calls.settle(queue, "ack", node, jobs))

    def nack(
        self,
        queue: str,
        node: str,
        jobs: Sequence[Job | int],
        *,
        delay_ms: int = 0,
        reason: str = "",
        penalty: bool = True,
    ) -> dict[str, Any]:
        """`penalty` false: it does not count as a delivery."""
        return self.send(calls.nack(queue, node, jobs, delay_ms, reason, penalty))

    def extend(
        self, queue: str, node: str, jobs: Sequence[Job | int], *, lease_ms: int, retries: Retries | None = None
    ) -> dict[str, Any]:
        return self.send(calls.settle(queue, "extend", node, jobs, lease_ms=lease_ms), retries)

    def redrive(self, topic: str, to: str, *, match: Any = None, limit: int | None = None) -> dict[str, Any]:
        """Move dead letters of a topic back to a queue. Never tried again by itself: one that failed may have begun,
        and another would move as many more."""
        return self.send(calls.redrive(topic, to, match, limit), NEVER)

    # --- consumer groups --------------------------------------------------------------------------------------------

    def put_group(self, topic: str, group: str, start: Any = "earliest") -> dict[str, Any]:
        """Create a group. `start` is "earliest", "latest", a seq to go on after, or {"ts": ms}."""
        return self.send(calls.put_group(topic, group, start))

    def group(self, topic: str, group: str) -> dict[str, Any]:
        """Where it stands, how far it is behind, and who reads."""
        return self.send(calls.group_state(topic, group))

    def groups(self, topic: str) -> list[dict[str, Any]]:
        """All groups of a topic."""
        found: list[dict[str, Any]] = self.send(calls.list_groups(topic))["groups"]
        return found

    def remove_group(self, topic: str, group: str) -> dict[str, Any]:
        return self.send(calls.remove_group(topic, group))

    def group_fetch(self, topic: str, group: str, **fields: Any) -> dict[str, Any]:
        """What the group is not done with; nothing moves. `fields` are those of the API, and `start` for its `from`."""
        return self.send(calls.group_fetch(topic, group, fields))

    def group_ack(self, topic: str, group: str, seq: int, *, consumer: str | None = None) -> dict[str, Any]:
        """The group is done with everything up to `seq`."""
        return self.send(calls.group_ack(topic, group, seq, consumer))

    def group_seek(self, topic: str, group: str, to: Any, *, consumer: str | None = None) -> dict[str, Any]:
        """Move it to "earliest", "latest", after a seq, or to a time, {"ts": ms}."""
        return self.send(calls.group_seek(topic, group, to, consumer))

    # --- routers --------------------------------------------------------------------------------------------------

    def put_router(self, router: str, source: str, dest: str, **fields: Any) -> dict[str, Any]:
        """Copy every record of `source` to `dest`, from now on."""
        return self.send(calls.put_router(router, {"source": source, "dest": dest, **fields}))

    def router(self, router: str) -> dict[str, Any]:
        return self.send(calls.router_state(router))

    def remove_router(self, router: str) -> dict[str, Any]:
        return self.send(calls.remove_router(router))

    def routers(self, prefix: str = "") -> Iterator[dict[str, Any]]:
        """Every router, page by page."""
        cursor = ""
        while True:
            page = self.send(calls.list_routers(prefix, cursor))
            yield from page["routers"]
            cursor = page.get("next_cursor", "")
            if not cursor:
                return


def items_of(page: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    if page["tombstone"] is not None:
        yield {"tombstone": page["tombstone"]}
    yield from page["records"]
