"""The client for trio."""

from collections.abc import AsyncIterator, Sequence
from typing import Any, Self

import httpx
import trio

from topics.client import calls
from topics.client.api import FOLLOW_WAIT_MS, items_of
from topics.client.calls import Job, Record, Request, Unreachable
from topics.client.retries import AGAIN, NEVER, Retries


class AsyncClient:
    def __init__(
        self,
        url: str = "http://127.0.0.1:4000",
        key: str | None = None,
        *,
        retries: Retries | None = None,
        timeout_s: float = calls.TIMEOUT_S,
        http: httpx.AsyncClient | None = None,
    ) -> None:
        """`http` is for those who need another transport; it keeps its own headers."""
        self._http = http or httpx.AsyncClient(base_url=url, headers=calls.headers_of(key))
        self._retries = retries or Retries()
        self._timeout_s = timeout_s

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._http.aclose()

    # --- topics ---------------------------------------------------------------------------------------------------

    async def put_topic(self, topic: str, **config: Any) -> dict[str, Any]:
        """Create a topic, or change its configuration."""
        return await self.send(calls.put_topic(topic, config))

    async def state(self, topic: str) -> dict[str, Any]:
        return await self.send(calls.state(topic))

    async def remove_topic(self, topic: str, *, if_empty: bool = False) -> dict[str, Any]:
        return await self.send(calls.remove_topic(topic, if_empty))

    async def topics(self, prefix: str = "") -> AsyncIterator[dict[str, Any]]:
        """Every topic, page by page."""
        cursor = ""
        while True:
            page = await self.send(calls.list_topics(prefix, cursor))
            for topic in page["topics"]:
                yield topic
            cursor = page.get("next_cursor", "")
            if not cursor:
                return

    # --- records --------------------------------------------------------------------------------------------------

    async def append(self, topic: str, records: Sequence[Record], **fields: Any) -> dict[str, Any]:
        """Append records: `[{"data": …, "tag": …}, …]`. `fields` are those of the API, such as `idempotency_key`."""
        return await self.send(calls.append(topic, records, fields))

    async def diff(self, topic: str, from_seq: int = 0, **fields: Any) -> dict[str, Any]:
        """Records after a cursor, or with `from_ts` from a time on; go on with `next_from_seq`."""
        return await self.send(calls.diff(topic, from_seq, fields))

    async def read(self, topic: str, from_seq: int = 0, **fields: Any) -> AsyncIterator[dict[str, Any]]:
        """Every record after a cursor up to the head; `{"tombstone": …}` where some were lost to a cap or a TTL."""
        while True:
            page = await self.diff(topic, from_seq, **fields)
            for item in items_of(page):
                yield item
            from_seq = page["next_from_seq"]
            fields.pop("from_ts", None)
            if page["caught_up"]:
                return

    async def follow(self, topic: str, from_seq: int = 0, **fields: Any) -> AsyncIterator[dict[str, Any]]:
        """As `read`, and then every new record as it comes."""
        while True:
            page = await self.diff(topic, from_seq, **{"wait_ms": FOLLOW_WAIT_MS, **fields})
            for item in items_of(page):
                yield item
            from_seq = page["next_from_seq"]
            fields.pop("from_ts", None)

    async def seek(self, topic: str, ts: int) -> dict[str, Any]:
        """Where a time (ms since 1970) is: the first `seq` of then or later, and the `from_seq` that reads it next."""
        return await self.send(calls.seek(topic, ts))

    async def delete(self, topic: str, **selection: Any) -> dict[str, Any]:
        """Delete by `before_seq`, `match`, or both."""
        return await self.send(calls.delete(topic, selection))

    # --- queues ---------------------------------------------------------------------------------------------------

    async def claim(
        self, queue: str, node: str, max: int = 1, *, lease_ms: int | None = None, wait_ms: int = 0
    ) -> list[Job]:
        answer = await self.send(calls.claim(queue, node, max, lease_ms, wait_ms))
        return [Job.read(fields) for fields in answer["claimed"]]

    async def ack(self, queue: str, node: str, jobs: Sequence[Job | int]) -> dict[str, Any]:
        return await self.send(calls.settle(queue, "ack", node, jobs))

    async def nack(
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
        return await self.send(calls.nack(queue, node, jobs, delay_ms, reason, penalty))

    async def extend(
        self, queue: str, node: str, jobs: Sequence[Job | int], *, lease_ms: int, retries: Retries | None = None
    ) -> dict[str, Any]:
        return await self.send(calls.settle(queue, "extend", node, jobs, lease_ms=lease_ms), retries)

    async def redrive(self, topic: str, to: str, *, match: Any = None, limit: int | None = None) -> dict[str, Any]:
        """Move dead letters of a topic back to a queue. Never tried again by itself: one that failed may have begun,
        and another would move as many more."""
        return await self.send(calls.redrive(topic, to, match, limit), NEVER)

    # --- consumer groups --------------------------------------------------------------------------------------------

    async def put_group(self, topic: str, group: str, start: Any = "earliest") -> dict[str, Any]:
        """Create a group. `start` is "earliest", "latest", a seq to go on after, or {"ts": ms}."""
        return await self.send(calls.put_group(topic, group, start))

    async def group(self, topic: str, group: str) -> dict[str, Any]:
        """Where it stands, how far it is behind, and who reads."""
        return await self.send(calls.group_state(topic, group))

    async def groups(self, topic: str) -> list[dict[str, Any]]:
        """All groups of a topic."""
        found: list[dict[str, Any]] = (await self.send(calls.list_groups(topic)))["groups"]
        return found

    async def remove_group(self, topic: str, group: str) -> dict[str, Any]:
        return await self.send(calls.remove_group(topic, group))

    async def group_fetch(self, topic: str, group: str, **fields: Any) -> dict[str, Any]:
        """What the group is not done with; nothing moves. `fields` are those of the API, and `start` for its `from`."""
        return await self.send(calls.group_fetch(topic, group, fields))

    async def group_ack(self, topic: str, group: str, seq: int, *, consumer: str | None = None) -> dict[str, Any]:
        """The group is done with everything up to `seq`."""
        return await self.send(calls.group_ack(topic, group, seq, consumer))

    async def group_seek(self, topic: str, group: str, to: Any, *, consumer: str | None = None) -> dict[str, Any]:
        """Move it to "earliest", "latest", after a seq, or to a time, {"ts": ms}."""
        return await self.send(calls.group_seek(topic, group, to, consumer))

    # --- routers --------------------------------------------------------------------------------------------------

    async def put_router(self, router: str, source: str, dest: str, **fields: Any) -> dict[str, Any]:
        """Copy every record of `source` to `dest`, from now on."""
        return await self.send(calls.put_router(router, {"source": source, "dest": dest, **fields}))

    async def router(self, router: str) -> dict[str, Any]:
        return await self.send(calls.router_state(router))

    async def remove_router(self, router: str) -> dict[str, Any]:
        return await self.send(calls.remove_router(router))

    async def routers(self, prefix: str = "") -> AsyncIterator[dict[str, Any]]:
        """Every router, page by page."""
        cursor = ""
        while True:
            page = await self.send(calls.list_routers(prefix, cursor))
            for router in page["routers"]:
                yield router
            cursor = page.get("next_cursor", "")
            if not cursor:
                return

    # --- requests -------------------------------------------------------------------------------------------------

    async def send(self, request: Request, retries: Retries | None = None) -> dict[str, Any]:
        """One request, tried again while it makes sense. Raises ApiError, Unreachable."""
        retries = retries or self._retries
        began, attempt = trio.current_time(), 0
        while True:
            attempt += 1
            wait_s = 0.0
            try:
                answer = await self._http.request(
                    request.method, request.path, **calls.options(request, self._timeout_s)
                )
                if answer.status_code not in AGAIN:
                    return calls.read(answer)
                wait_s = calls.retry_after_s(answer)
            except httpx.TransportError as error:
                failure: Exception = error
                answer = None
            pause = retries.pause(attempt, trio.current_time() - began, wait_s)
            if pause is None:
                if answer is None:
                    raise Unreachable(f"{request.method} {request.path}: {failure!r}") from failure
                return calls.read(answer)
            await trio.sleep(pause)
