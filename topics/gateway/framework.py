"""Quart and Hypercorn, for what is not answered on the hot path. To import them takes longer than all the rest.

So a gateway serves without them at first, and loads them in a thread: when it is asked to, which is when the whole
server is ready, or when the first request needs them. That one waits; everybody else is served meanwhile.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import trio

from topics.gateway.access import Door

if TYPE_CHECKING:
    from topics.gateway.handover import Handover


class Framework:
    def __init__(self, make_app: Callable[[], Any], door: Door, send_s: float, body_bytes: int) -> None:
        """`make_app` is called in a thread, once."""
        self._make_app = make_app
        self._door = door
        self._send_s = send_s
        self._body_bytes = body_bytes
        self._asked = trio.Event()
        self._up = trio.Event()
        self._app: Any = None
        self._handover: Handover | None = None

    def ask(self) -> None:
        """Load it soon, if that has not begun."""
        self._asked.set()

    async def app(self) -> Any:
        """The ASGI app."""
        if not self._up.is_set():  # else without a checkpoint
            await self._wait()
        return self._app

    async def handover(self) -> "Handover":
        if not self._up.is_set():
            await self._wait()
        assert self._handover is not None
        return self._handover

    async def run(self) -> None:
        """Load it when asked, and run the app's start-up. Until cancelled."""
        await self._asked.wait()
        await trio.to_thread.run_sync(self._load, abandon_on_cancel=True)
        assert self._handover is not None
        async with trio.open_nursery() as nursery:
            await self._handover.start(nursery)
            self._up.set()

    async def stop(self) -> None:
        """Run the app's shutdown."""
        if self._up.is_set() and self._handover is not None:
            await self._handover.stop()

    async def _wait(self) -> None:
        self.ask()
        await self._up.wait()

    def _load(self) -> None:
        app = self._make_app()
        from topics.gateway.handover import Handover

        self._handover = Handover(app, self._door, self._send_s, self._body_bytes)
        self._app = app
