"""Who is served when there is more to do than time: readers of changed topics, by effective priority (semantics §3).

On an idle shard nothing waits: a changed topic's readers are served at once. When serving has taken its share of a turn
of the loop, further topics queue up in weighted bands and are served a millisecond at a time, in between everything
else; so is the rest of one topic's readers if they are too many for that, in their order. What changes again meanwhile
is served once, with everything: deliveries coalesce. Under pressure (the log queue fills, the loop lags) low bands are
held back until they have aged, and at the high-water mark writes are refused. Waiting costs latency, never data.
"""

import time
from collections import deque
from collections.abc import Callable

import trio

from topics import errors, limits
from topics.core import priority
from topics.core.schedule import LOW_BANDS, Bands, band_of
from topics.core.topic import Topic
from topics.errors import TopicsError
from topics.shards.engine import Engine

TICK_S = limits.AGING_TICK_MS / 1000
LAG_WEIGHT = 0.25  # of the newest reading; one late turn is not yet pressure


class Scheduler:
    def __init__(self, engine: Engine, clock_ns: Callable[[], int] | None = None) -> None:
        self.lag_ms = 0.0  # how late the loop comes to what is due, smoothed
        self.waited_ms = 0.0  # how long the topic that is being served had to wait
        self._engine = engine
        self._clock_ns = clock_ns or time.perf_counter_ns
        self._bands: Bands[Topic] = Bands()
        self._since: dict[Topic, int] = {}  # when a queued topic came, by our clock
        self._rounds: dict[Topic, deque[Callable[[], None]]] = {}  # readers who have not had their turn yet
        self._window_ends = 0
        self._spent = 0
        self._work = trio.Event()
        engine.on_change = self.ready

    def __len__(self) -> int:
        return len(self._bands)

    def ready(self, topic: Topic) -> None:
        """A topic with waiting readers has changed."""
        if self._rounds and topic in self._rounds:
            self._rounds[topic].extend(topic.take_waiters())  # who is in it already will see this change, too
            return
        if topic in self._since:
            return
        at_once = not len(self._bands) and not self.under_pressure and self._has_time()
        if not at_once or not self._serve(topic, 0.0, limits.YIELD_AFTER_NS - self._spent):
            self._queue(topic, self._clock_ns(), self._engine.now())

    def _queue(self, topic: Topic, came: int, came_ms: int | None) -> None:
        topic.queued_ms = came_ms
        self._since[topic] = came
        self._bands.put(topic, self._band(topic))
        self._work.set()

    # --- pressure -------------------------------------------------------------------------------------------------

    @property
    def under_pressure(self) -> bool:
        """Time to coalesce, and to hold low bands back."""
        return self.lag_ms > limits.LAG_PRESSURE_MS or self._engine.log.crowded

    def check_admission(self) -> None:
        """Refuse new work at the high-water mark. Raises `throttled`."""
        if self.lag_ms > limits.LAG_HIGH_MS:
            wait_ms = int(self.lag_ms)
            raise TopicsError(
                errors.THROTTLED, "the shard cannot keep up; retry in a moment", {"retry_after_ms": wait_ms}
            )

    # --- serving --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve what waits, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tick)
            while True:
                await self._work.wait()
                if self._serve_slice():
                    await trio.lowlevel.checkpoint()
                else:
                    self._work = trio.Event()  # nothing is due before the next tick, or before something comes

    async def _tick(self) -> None:
        """Let waiting topics age, and see how late the loop is."""
        while True:
            due = trio.current_time() + TICK_S
            await trio.sleep_until(due)
            late_ms = (trio.current_time() - due) * 1000
            self.lag_ms += (late_ms - self.lag_ms) * LAG_WEIGHT
            if len(self._bands):
                self._bands.sort_again(self._band)
                self._work.set()

    def _serve_slice(self) -> bool:
        """Serve for about a millisecond; whether there may be more."""
        now = self._clock_ns()
        until = now + limits.YIELD_AFTER_NS
        skip = LOW_BANDS if self.under_pressure else frozenset[int]()
        while (topic := self._bands.pop(skip)) is not None:
            came, came_ms = self._since.pop(topic), topic.queued_ms
            topic.queued_ms = None
            if not self._serve(topic, (now - came) / 1e6, until - now):
                self._queue(topic, came, came_ms)  # behind the others of its band, and as old as before
            now = self._clock_ns()
            if now >= until:
                return True
        return False

    def _serve(self, topic: Topic, waited_ms: float, time_ns: int) -> bool:
        """Have its readers look; whether all did. If they are many, only for as long as there is time."""
        began = self._clock_ns()
        self.waited_ms = waited_ms
        try:
            if not (self._rounds and topic in self._rounds) and len(topic.waiters or ()) <= limits.WAKE_AT_ONCE:
                topic.run_waiters()
                return True
            return self._go_round(topic, began + time_ns)
        finally:
            self.waited_ms = 0.0
            self._spent += self._clock_ns() - began

    def _go_round(self, topic: Topic, until: int) -> bool:
        waiting = self._rounds.get(topic)
        if waiting is None:
            waiting = self._rounds[topic] = deque(topic.take_waiters())
        try:
            while waiting:
                waiting.popleft()()
                if waiting and self._clock_ns() >= until:
                    return False
        except BaseException:
            del self._rounds[topic]  # nobody would go on with it
            raise
        del self._rounds[topic]
        return True

    def _has_time(self) -> bool:
        now = self._clock_ns()
        if now > self._window_ends:
            self._window_ends, self._spent = now + 2 * limits.YIELD_AFTER_NS, 0
        return self._spent < limits.YIELD_AFTER_NS

    def _band(self, topic: Topic) -> int:
        config, now, queued = topic.config, self._engine.now(), topic.queued_ms
        if queued is not None and now - queued >= priority.AGE_CAP_MS:
            return 0  # no more patience, whatever its priority
        return band_of(priority.effective(config.priority, config.auto_priority, topic.last_read_ms, now, queued))
