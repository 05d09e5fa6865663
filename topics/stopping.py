"""When a child process has to stop: on a signal, or because its supervisor is gone."""

import os
import signal

import trio


async def stop_on_signal(stop: trio.Event) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for _ in signals:
            stop.set()


async def orphaned(lifeline: int) -> None:
    """Returns when the other end of the pipe is closed, which only the supervisor's end does, by whatever cause."""
    os.set_blocking(lifeline, False)
    while True:
        await trio.lowlevel.wait_readable(lifeline)
        if not os.read(lifeline, 1):
            return
