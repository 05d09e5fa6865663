"""A client and a server of the RPC, joined in memory: no socket, no real time."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import trio
import trio.testing

from topics.rpc import Connection, Handler, connect, serve


@asynccontextmanager
async def rpc_pair(handlers: Mapping[str, Handler]) -> AsyncIterator[Connection]:
    """A connection to a server of `handlers`; both end with the block."""
    ours, theirs = trio.testing.memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve, theirs, handlers)
        yield await connect(ours, nursery)
        nursery.cancel_scope.cancel()


async def until(condition: Callable[[], object]) -> None:
    """Let other tasks run until the condition holds."""
    while not condition():
        await trio.lowlevel.checkpoint()
