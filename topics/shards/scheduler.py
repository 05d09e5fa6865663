"""Who is served when there is more to do than time: readers of changed topics, by effective priority (semantics §3).

On an idle shard nothing waits: a changed topic's readers are served at once. When serving has taken its share of a turn
of the loop, further topics queue up in weighted bands and are served a millisecond at a time, in between everything
else. What changes again meanwhile is served once, with everything: deliveries coalesce. Under pressure (the log queue
fills, the loop lags) low bands are held back until they have aged, and at the high-water mark writes are refused.
Waiting costs latency, never data.
"""

import time
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
    def __init__(self, engine: Engine, clock_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self.lag_ms = 0.0  # how late the loop comes to what is due, smoothed
        self.waited_ms = 0.0  # how long the topic that is being served had to wait
        self._engine = engine
        self._clock_ns = clock_ns
        self._bands: Bands[Topic] = Bands()
        self._since: dict[Topic, int] = {}  # when a queued topic came, by our clock
        self._window_ends = 0
        self._spent = 0
        self._work = trio.Event()
        engine.on_change = self.ready

    def __len__(self) -> int:
        return len(self._bands)

    def ready(self, topic: Topic) -> None:
        """A topic with waiting readers has changed."""
        if topic in self._since:
            return
        if not len(self._bands) and not self.under_pressure and self._has_time():
            self._serve(topic, 0.0)
            return
        topic.queued_ms = self._engine.now()
        self._since[topic] = self._clock_ns()
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
        until = self._clock_ns() + limits.YIELD_AFTER_NS
        skip = LOW_BANDS if self.under_pressure else frozenset[int]()
        while self._clock_ns() < until:
            topic = self._bands.pop(skip)
            if topic is None:
                return False
            came = self._since.pop(topic)
            topic.queued_ms = None
            self._serve(topic, (self._clock_ns() - came) / 1e6)
        return True

    def _serve(self, topic: Topic, waited_ms: float) -> None:
        began = self._clock_ns()
        self.waited_ms = waited_ms
        try:
            topic.run_waiters()
        finally:
            self.waited_ms = 0.0
            self._spent += self._clock_ns() - began

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
