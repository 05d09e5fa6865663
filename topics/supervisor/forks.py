"""Children that are forks of the template."""

import os
import signal
import socket
from typing import Protocol

import msgspec
import trio

from topics.supervisor.template import GO, Request
from topics.supervisor.template_start import Template

PATIENCE_S = 20.0


class TemplateLost(Exception):
    """The template has ended or does not answer. It has started nothing."""


class Process(Protocol):
    """What is used of a `trio.Process`."""

    @property
    def pid(self) -> int: ...

    def send_signal(self, number: signal.Signals) -> None: ...

    async def wait(self) -> int: ...


class Fork:
    """A child of ours that we did not start."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._pidfd = os.pidfd_open(pid)
        self._reaped = False

    def send_signal(self, number: signal.Signals) -> None:
        if not self._reaped:  # else the number may be somebody else's by now
            os.kill(self.pid, number)

    async def wait(self) -> int:
        """Once. Its exit status, negative for a signal."""
        await trio.lowlevel.wait_readable(self._pidfd)
        os.close(self._pidfd)
        self._reaped = True
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])  # noqa: ASYNC222 - it has ended


class Forks:
    """Asks the template for one child at a time."""

    def __init__(self, template: Template) -> None:
        self._template = template
        self._template.control.setblocking(False)
        self._turn = trio.Lock()
        self._lost = False

    async def start(self, request: Request) -> Fork:
        """The fork gets our descriptors `request.fds`. Raises TemplateLost, and OSError if there cannot be a fork."""
        waiting, gate = os.pipe()
        try:
            async with self._turn:
                pid = await self._ask(request, waiting)
            fork = Fork(pid)
            os.write(gate, GO)
            return fork
        finally:
            os.close(waiting)
            os.close(gate)  # a fork that we were not told of sees this, and ends

    async def _ask(self, request: Request, waiting: int) -> int:
        if self._lost:
            raise TemplateLost
        self._lost = True  # unless all goes well: what is left in the socket must not be taken for another's answer
        control = self._template.control
        try:
            with trio.fail_after(PATIENCE_S):
                socket.send_fds(control, [msgspec.json.encode(request)], [waiting, *request.fds])
                await trio.lowlevel.wait_readable(control)
                answer = int(control.recv(32))  # nothing at its end is no number
        except (OSError, ValueError, trio.TooSlowError) as error:
            self._template.process.kill()
            raise TemplateLost from error
        self._lost = False
        if answer < 0:
            raise OSError(-answer, os.strerror(-answer))
        return answer
