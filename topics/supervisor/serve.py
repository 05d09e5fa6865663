"""The life of `topics serve`: take what the server needs, run the children, stop them in order.

Start, when the API keys are known (see start.py): data-dir lock, slot map, run directory, listening sockets, board;
then all children at once, as forks of the template. Gateways do not wait for shards: the port answers from the first
moment. When every shard has been ready the board says so; when the gateways accept, too, the port file is written and
systemd is told.

Stop, on SIGTERM or SIGINT: gateways first, which end what is open, then shards, which write a checkpoint. What has not
ended within TOPICS_STOP_MS is killed, and a second signal kills at once; both make the exit status 1. A kill loses
nothing that was acked: the logs are replayed at the next start.

If the supervisor itself is killed, the lifeline ends and every child follows by itself.
"""

import logging
import os
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from topics import __version__
from topics.board import Board, Phase
from topics.clock import Clock, SystemClock
from topics.keys import KeyDigest
from topics.rpc import serve_unix
from topics.settings import Settings, is_loopback
from topics.supervisor import admin, slotmap
from topics.supervisor.child import Child
from topics.supervisor.colddir import check_cold_dir
from topics.supervisor.datadir import DataDirError, open_data_dir, using
from topics.supervisor.forks import Forks
from topics.supervisor.listen import ListenError, address_text, inherited, listen
from topics.supervisor.notify import Notifier, ping_interval_s
from topics.supervisor.programs import Launcher, Programs
from topics.supervisor.rundir import RunDirError, make_run_dir, remove_run_dir, write_port_file
from topics.supervisor.template_start import Template

log = logging.getLogger("topics.supervisor")
REPORT_S = 1.0
EXTEND_US = 30_000_000


def serve(
    settings: Settings, keys: list[KeyDigest], programs: Programs | None = None, template: Template | None = None
) -> int:
    """Serve until told to stop; the exit status."""
    clock = SystemClock()
    try:
        with _take(settings, keys, programs or Programs(), template, clock) as taken:
            server = Server(settings, taken, clock)
            trio.run(server.run)
            return server.status
    except (DataDirError, ListenError, RunDirError) as error:
        log.error("%s", error)
    except KeyboardInterrupt:  # before the server listened to signals
        log.info("interrupted")
    return 1


@dataclass(frozen=True, slots=True)
class Taken:
    """What a running server holds."""

    launcher: Launcher
    board: Board
    listeners: list[socket.socket]
    data_dir: Path
    address: str


@contextmanager
def _take(
    settings: Settings, keys: list[KeyDigest], programs: Programs, template: Template | None, clock: Clock
) -> Iterator[Taken]:
    """Everything the server needs, given back in reverse. A crash inside leaves a run directory, see rundir.py."""
    started_ms = clock.now_ms()
    with ExitStack() as stack:
        data = stack.enter_context(closing(open_data_dir(Path(settings.data_dir).absolute())))
        with using(data.path):
            slots, served = slotmap.settle(data.path, settings.shards)
        check_cold_dir(settings.cold_dir, data.path, served)
        given = inherited(os.environ, os.getpid())
        listeners = _listeners(settings, given, with_keys=bool(keys))
        for sock in listeners:
            stack.enter_context(sock)
        if data.previous is not None:
            remove_run_dir(Path(data.previous.run_dir))
        run_dir = make_run_dir(settings.run_dir, os.environ.get("XDG_RUNTIME_DIR"))
        stack.callback(remove_run_dir, run_dir)
        data.publish(str(run_dir))
        path = str(run_dir / "board")
        sizes = {"shards": max(served) + 1, "gateways": settings.gateways, "keys": len(keys)}
        board = Board.create(path, **sizes, started_ms=started_ms)
        lifeline, our_end = os.pipe()
        stack.callback(os.close, lifeline)
        stack.callback(os.close, our_end)  # a child that is still there ends now
        launcher = Launcher(
            programs, settings, keys, run_dir, data.lock_fd, lifeline, slots, served, path, started_ms,
            port_is_lent=given is not None, forks=Forks(template) if template is not None else None,
        )  # fmt: skip
        yield Taken(launcher, board, listeners, data.path, address_text(listeners[0]))


class Server:
    def __init__(self, settings: Settings, taken: Taken, clock: Clock) -> None:
        self.status = 0
        self._settings = settings
        self._taken = taken
        self._clock = clock
        self._stop = trio.Event()
        self._announced = False
        self._notifier = Notifier(os.environ.get("NOTIFY_SOCKET"))
        self._ping_s = ping_interval_s(os.environ, os.getpid())
        self._port_file = Path(settings.port_file).absolute() if settings.port_file else None
        self._shards = [self._make_shard(index) for index in taken.launcher.served]
        self._gateways = [self._make_gateway(index) for index in range(settings.gateways)]
        self._children = [*self._shards, *self._gateways]

    def _make_shard(self, index: int) -> Child:
        launcher, directory = self._taken.launcher, slotmap.shard_dir(self._taken.data_dir, index)
        watch = self._taken.board.watch_shard(index)
        path = launcher.socket_of("shard", index)
        return Child(
            "shard", index, lambda: launcher.shard(index, directory), path, watch, self._clock, self._settings.stuck_ms
        )

    def _make_gateway(self, index: int) -> Child:
        launcher, listener = self._taken.launcher, self._taken.listeners[index]
        watch = self._taken.board.watch_gateway(index)
        path = launcher.socket_of("gateway", index)
        return Child(
            "gateway",
            index,
            lambda: launcher.gateway(index, listener),
            path,
            watch,
            self._clock,
            self._settings.stuck_ms,
        )

    async def run(self) -> None:
        """Until every child has ended for good."""
        self._forget_port()
        try:
            with trio.open_signal_receiver(*_stop_signals()) as signals:
                async with trio.open_nursery() as beside:
                    beside.start_soon(self._obey, signals)
                    beside.start_soon(self._announce)
                    beside.start_soon(self._report)
                    beside.start_soon(self._ping)
                    await beside.start(self._serve_admin)
                    await self._run_children()
                    beside.cancel_scope.cancel()
        finally:
            self._forget_port()

    async def _serve_admin(self, task_status: Any) -> None:
        path = str(self._taken.launcher.run_dir / admin.SOCKET)
        handlers = admin.handlers(self._summary, self._children, self._taken.board)
        await serve_unix(path, handlers, task_status=task_status)

    async def _run_children(self) -> None:
        async with trio.open_nursery() as nursery:
            for children in (self._shards, self._gateways):
                for child in children:
                    nursery.start_soon(child.run, self._clear, self._cope)
                await trio.lowlevel.checkpoint()  # shards are first in line: they have more to do
            await self._stop.wait()
            await self._drain()
        log.info("stopped" if self.status == 0 else "stopped, not cleanly")

    # --- children -------------------------------------------------------------------------------------------------

    def _clear(self, child: Child) -> None:
        if child.kind == "gateway":
            self._taken.board.clear_gateway(child.index)

    def _cope(self, child: Child) -> None:
        """A child is down for good. Before the server was ever ready, or without anybody left to do its work, that is
        the end of the server; else the others go on."""
        if child.kind == "gateway":
            self._taken.listeners[child.index].close()  # the kernel gives its share of connections to the others
        kin = self._gateways if child.kind == "gateway" else self._shards
        if not self._announced or all(other.reason for other in kin):
            log.error("the server stops because %s cannot run", child.name)
            self._fail()

    def _fail(self) -> None:
        self.status = 1
        self._stop.set()

    # --- beside them ----------------------------------------------------------------------------------------------

    async def _obey(self, signals: Any) -> None:
        async for number in signals:
            if self._stop.is_set():
                log.warning("second signal: killing what still runs")
                self._kill(self._children)
            else:
                log.info("%s: stopping", signal.Signals(number).name)
                self._stop.set()

    async def _announce(self) -> None:
        for shard in self._shards:
            await shard.first_ready.wait()
        if not self._stop.is_set():
            self._taken.board.set_phase(Phase.READY)
        for gateway in self._gateways:
            await gateway.first_ready.wait()
        if self._stop.is_set():
            return
        address, spent_ms = self._taken.address, self._clock.now_ms() - self._taken.launcher.started_ms
        if self._port_file is not None:
            try:
                write_port_file(self._port_file, address)
            except OSError as error:
                log.error("TOPICS_PORT_FILE (--port-file) %s cannot be written: %s", self._port_file, error.strerror)
                self._fail()
                return
        self._announced = True
        self._notifier.send(READY=1, STATUS=self._status_line())
        fields = {"address": address, "shards": len(self._shards), "gateways": len(self._gateways)}
        log.info("ready after %d ms: http://%s", spent_ms, address, extra={"fields": fields})

    async def _report(self) -> None:
        """Tell systemd how the replay goes, and that it should wait; later, which child is not well."""
        said = ""
        while True:
            if self._taken.board.phase is Phase.STARTING:
                progress = self._taken.board.readiness().progress
                self._notifier.send(STATUS=f"replaying logs: {progress:.0%}", EXTEND_TIMEOUT_USEC=EXTEND_US)
            elif self._announced and not self._stop.is_set() and (line := self._status_line()) != said:
                self._notifier.send(STATUS=line)
                said = line
            await trio.sleep(REPORT_S)

    def _status_line(self) -> str:
        unwell = ", ".join(f"{child.name} {child.condition}" for child in self._children if not child.well)
        return f"serving http://{self._taken.address}" + (f"; {unwell}" if unwell else "")

    async def _ping(self) -> None:
        """Feed systemd's watchdog while every child that runs answers. A silent one is killed after TOPICS_STUCK_MS,
        and all is well again; if it cannot even be killed (an uninterruptible wait), the watchdog ends everything."""
        while self._ping_s:
            if not any(child.silent for child in self._children):
                self._notifier.send(WATCHDOG=1)
            await trio.sleep(self._ping_s)

    def _summary(self) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "version": __version__,
            "phase": self._taken.board.phase.name.lower(),
            "address": self._taken.address,
            "started_ms": self._taken.launcher.started_ms,
            "data_dir": str(self._taken.data_dir),
            "shards": self._settings.shards,
            "gateways": self._settings.gateways,
        }

    # --- stop -----------------------------------------------------------------------------------------------------

    async def _drain(self) -> None:
        began, settings = trio.current_time(), self._settings
        self._taken.board.set_phase(Phase.DRAINING)
        self._notifier.send(STOPPING=1, STATUS="stopping")
        self._forget_port()
        for gateway in self._gateways:
            gateway.stop()
        for sock in self._taken.listeners:
            sock.close()  # from now on each gateway alone decides what becomes of new connections
        await self._end(self._gateways, began + settings.gateway_stop_ms / 1000)
        await self._end(self._shards, began + settings.stop_ms / 1000)

    async def _end(self, children: Sequence[Child], deadline: float) -> None:
        for child in children:
            child.stop()
        with trio.move_on_at(deadline):
            for child in children:
                await child.ended.wait()
        self._kill(children)
        for child in children:
            await child.ended.wait()

    def _kill(self, children: Sequence[Child]) -> None:
        for child in children:
            if not child.ended.is_set():
                log.error("%s has not ended yet and is killed", child.name)
                self.status = 1
                child.kill()

    def _forget_port(self) -> None:
        if self._port_file is not None:
            with suppress(FileNotFoundError):
                self._port_file.unlink()


def _listeners(settings: Settings, given: socket.socket | None, *, with_keys: bool) -> list[socket.socket]:
    """One for each gateway: of the socket that systemd hands down if it does, else of our own."""
    if given is None:
        return listen(settings.host, settings.port, settings.gateways)
    open_to_all = with_keys or settings.allow_insecure_no_auth
    if not open_to_all and not is_loopback(given.getsockname()[0]):
        text = address_text(given)
        given.close()
        raise ListenError(
            f"systemd listens on {text}, which others can reach, and no API keys are set: set TOPICS_API_KEYS or "
            "TOPICS_API_KEYS_FILE, or TOPICS_ALLOW_INSECURE_NO_AUTH=1 to serve everybody"
        )
    with given:
        return [given.dup() for _ in range(settings.gateways)]


def _stop_signals() -> list[signal.Signals]:
    """Those that stop the server, but for any that whoever started it (nohup, a shell's &) made it ignore."""
    wanted = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    return [number for number in wanted if signal.getsignal(number) is not signal.SIG_IGN]
