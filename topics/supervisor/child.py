"""One child over all its lives: started, watched, started again as the policy says, stopped.

What is seen of it goes to its watch slot on the board at once, where the gateways read it. A process that runs but
answers nothing for TOPICS_STUCK_MS is killed: it would never come back by itself, and its successor does.
"""

import logging
import signal
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

import trio

from topics import limits
from topics.board import PROGRESS_WHOLE, ChildState, Slot
from topics.clock import Clock
from topics.rpc import Connection, RpcError, connect_unix
from topics.supervisor.forks import Process
from topics.supervisor.patience import Patience
from topics.supervisor.policy import GiveUp, Life, describe, next_action

log = logging.getLogger("topics.supervisor")

POLL_FIRST_S, POLL_STARTING_S = 0.005, 0.03
POLL_READY_S = 0.5
HISTORY_MAX = 64
EXIT_NOT_STARTED = 71

Launch = Callable[[], Awaitable[Process]]


class Child:
    def __init__(
        self, kind: str, index: int, launch: Launch, socket: str, watch: Slot, clock: Clock, stuck_ms: int
    ) -> None:
        self.kind = kind
        self.index = index
        self.name = f"{kind}-{index}"
        self.state = ChildState.DOWN
        self.restarts = 0
        self.started_ms = 0
        self.reason = ""  # why the supervisor gave up on it
        self.first_ready = trio.Event()
        self.ended = trio.Event()  # for good
        self._launch = launch
        self._socket = socket
        self._watch = watch
        self._clock = clock
        self._process: Process | None = None
        self._history: list[Life] = []
        self._ready_ms: int | None = None
        self._launched_s = 0.0  # by trio's clock
        self._missing = False  # the last look at it was in vain
        self._stopping = trio.Event()
        self._ending: signal.Signals | None = None
        self._patience = Patience(stuck_ms / 1000)
        self._health_ms = min(limits.HEALTH_DEADLINE_MS, stuck_ms // 3)
        self._enter(ChildState.DOWN)

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    @property
    def progress(self) -> float:
        return self._watch.get("replay_progress") / PROGRESS_WHOLE

    @property
    def well(self) -> bool:
        return self.state is ChildState.READY

    @property
    def condition(self) -> str:
        """For people. One that had been ready and is silent now is as good as starting to gateways, but not to them."""
        quiet = self.state is ChildState.STARTING and self._ready_ms is not None and self._missing
        return "not answering" if quiet else self.state.name.lower()

    @property
    def silent(self) -> bool:
        """It runs and answers nothing. One that is being started (again) is not meant."""
        return self._process is not None and self._patience.strained

    def describe(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "index": self.index,
            "pid": self.pid,
            "state": self.condition,
            "restarts": self.restarts,
            "started_ms": self.started_ms,
            "replay_progress": round(self.progress, 3),
            "topics": self._watch.get("topics"),
            "reason": self.reason,
        }

    # --- life -----------------------------------------------------------------------------------------------------

    async def run(self, gone: Callable[["Child"], None], failed: Callable[["Child"], None]) -> None:
        """Keep it running until `stop`, or until the policy gives up. `gone` is called after each end of a process,
        before the next start; `failed` when there is no next start."""
        try:
            while not self._stopping.is_set():
                status = await self._live()
                gone(self)
                if self._stopping.is_set():
                    return
                action = next_action(self._history, status, self._clock.now_ms())
                if isinstance(action, GiveUp):
                    self._give_up(action.reason)
                    failed(self)
                    return
                self._enter(ChildState.DOWN)
                log.warning("%s %s; starting it again in %d ms", self.name, describe(status), action.delay_ms)
                self.restarts += 1
                with trio.move_on_after(action.delay_ms / 1000):
                    await self._stopping.wait()
        finally:
            self.ended.set()

    def stop(self) -> None:
        """Ask it to end, once, and do not start it again."""
        if not self._stopping.is_set():
            self._stopping.set()
            self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it now, and do not start it again."""
        self._stopping.set()
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        self._ending = number  # for a process that is just being started
        if self._process is not None:
            self._enter(ChildState.STOPPING)
        self.signal(number)

    def signal(self, number: signal.Signals) -> None:
        """A signal to the process, if there is one. It is not yet reaped then, so the pid is still its own."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def _live(self) -> int:
        """From one start to the end of that process; its exit status. Cancelled, the process is left running."""
        self.started_ms, self._ready_ms = self._clock.now_ms(), None
        self._patience.begin(trio.current_time())
        try:
            self._process = await self._launch()
        except OSError as error:
            log.error("%s could not be started: %s", self.name, error.strerror)
            status = EXIT_NOT_STARTED
        else:
            self._launched_s = trio.current_time()
            self._watch.set("replay_progress", 0)
            self._enter(ChildState.STARTING)
            if self._ending is not None:  # while it was being started
                self._end(self._ending)
            status = await self._wait(self._process)
            self._process = None
        killed = status == -signal.SIGKILL
        self._history.append(Life(self.started_ms, self._ready_ms, self._clock.now_ms(), killed))
        del self._history[:-HISTORY_MAX]
        return status

    async def _wait(self, process: Process) -> int:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch_health)
            status = await process.wait()
            nursery.cancel_scope.cancel()
        return status

    def _give_up(self, reason: str) -> None:
        self.reason = reason
        self._enter(ChildState.FAILED)
        log.error("%s is not started again: %s", self.name, reason)

    # --- what is seen of it ---------------------------------------------------------------------------------------

    async def _watch_health(self) -> None:
        async with trio.open_nursery() as nursery:
            connection: Connection | None = None
            while True:
                try:
                    if connection is None or connection.lost:
                        connection = await connect_unix(self._socket, nursery)
                    reply = await connection.call("health", {}, deadline_ms=self._health_ms)
                    self._see(reply.head)
                except RpcError as error:
                    self._miss(error)
                await trio.sleep(self._pause_s())

    def _pause_s(self) -> float:
        """Until the next look. What starts quickly is to be seen soon; what takes long is not asked as often."""
        if self.state is ChildState.READY:
            return POLL_READY_S
        age_s = trio.current_time() - self._launched_s
        return min(max(POLL_FIRST_S, age_s / 5), POLL_STARTING_S)

    def _see(self, health: Mapping[str, Any]) -> None:
        self._patience.heard(trio.current_time())
        self._missing = False
        progress = 1.0 if health.get("ready") else float(health.get("replay_progress", 0.0))
        self._watch.set("replay_progress", int(progress * PROGRESS_WHOLE))
        if "topics" in health:
            self._watch.set("topics", int(health["topics"]))
        if not health.get("ready"):
            self._lose_ready()
        elif self.state is ChildState.STARTING:
            if self._ready_ms is None:
                self._ready_ms = self._clock.now_ms()
                log.info("%s is ready after %d ms", self.name, self._ready_ms - self.started_ms)
            self._enter(ChildState.READY)
            self.first_ready.set()

    def _miss(self, error: RpcError) -> None:
        """No answer. Normal while it starts and ends; else it hangs, and gateways should know."""
        if self.state is ChildState.READY:
            log.warning("%s does not answer: %s", self.name, error.message)
        self._missing = True
        self._lose_ready()
        if self._patience.missed(trio.current_time(), error) and not self._stopping.is_set():
            log.error("%s answers nothing any more and is killed", self.name)
            self.signal(signal.SIGKILL)

    def _lose_ready(self) -> None:
        if self.state is ChildState.READY:
            self._enter(ChildState.STARTING)

    def _enter(self, state: ChildState) -> None:
        if state is not self.state:
            self._watch.set("since_ms", self._clock.now_ms())
        self.state = state
        self._watch.set("pid", self.pid)
        self._watch.set("restarts", self.restarts)
        self._watch.set("state", state)
