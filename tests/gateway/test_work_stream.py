"""What a stream of jobs makes of what its shard sends."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from topics.errors import STORAGE_FULL, THROTTLED
from topics.gateway.work_stream import WorkStream
from topics.rpc.open_calls import Reply


class Sent:
    """A client that takes everything at once."""

    stalled = False

    def __init__(self) -> None:
        self.frames: list[bytes] = []

    def push(self, frames: list[bytes]) -> None:
        self.frames += frames


@pytest.mark.parametrize(("code", "status"), [(THROTTLED, 429), (STORAGE_FULL, 507)])
async def test_a_stream_that_is_paced_says_so_and_goes_on(code, status):
    items = [
        Reply({"paced": [code, "no room", 100]}, b""),
        Reply({"seqs": [3], "sizes": [10]}, b'{"$seq":3}'),
    ]

    async def calls() -> Any:
        for item in items:
            yield item

    live: Any = SimpleNamespace(
        shards=SimpleNamespace(peer_of=lambda _: None), bounds=SimpleNamespace(slow_consumer_ms=1000)
    )
    slot: Any = None
    stream, sent = WorkStream(live, "q", {"topic": "q"}, slot), Sent()
    stream._call, stream._sink = calls(), sent  # type: ignore[assignment]
    with trio.fail_after(60):
        await stream._pass_on()
    first, second = sent.frames
    event, data, *_ = first.decode().split("\n")
    assert event == "event: error"
    told = {"code": status, "error": "no room", "retry_after_ms": 100, "topics": ["q"]}
    assert json.loads(data.removeprefix("data: ")) == told
    assert second.startswith(b"id: 3\nevent: job\n")
