"""Telling the log how far copies have come. Copies are not logged; where they ended is, now and then.

All topics that moved go into one frame, so that the cost does not grow with the number of routers.
"""

import trio

from topics import limits
from topics.core import state as core
from topics.core.derivation import Mark
from topics.core.events import Marked
from topics.core.topic import Topic
from topics.shards.engine import Engine
from topics.shards.waiting import wait_for


class Marks:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._moved: set[Topic] = set()
        self._more = trio.Event()

    def note(self, topic: Topic) -> None:
        """Copies came into this topic."""
        self._moved.add(topic)
        self._more.set()

    async def run(self) -> None:
        """Until cancelled; asleep while nothing moves."""
        while True:
            await self._more.wait()
            await trio.sleep(limits.MARK_MS / 1000)
            self._more = trio.Event()
            self.write()

    def write(self) -> None:
        """Log what is not in the log yet. A topic with writes under way has its turn later."""
        engine = self._engine
        moved, self._moved = self._moved, set()
        ready = []
        for topic in moved:
            if topic.derived is None or topic.removing or topic.derived.seq == topic.derived.marked:
                continue
            if topic.pending:
                self.note(topic)
            else:
                ready.append(topic)
        if not ready or engine.poisoned is not None:
            return
        marks = [topic.derived.mark(topic) for topic in ready if topic.derived is not None]
        event = Marked(marks)
        core.apply(engine.state, event, engine.log.put(event))
        for topic in ready:
            engine.note_change(topic, topic.count, topic.bytes)
            if topic.derived is not None:
                topic.derived.forget_skipped()

    def write_one(self, topic: Topic) -> None:
        """Before something is logged that a replay can only understand if it knows the head."""
        if topic.derived is not None and topic.derived.seq != topic.derived.marked:
            self._engine.submit(topic, Marked([topic.derived.mark(topic)]), False, lambda _: None, lambda _: None)

    async def change(self, topic: Topic, mark: Mark) -> None:
        """Until the mark is true and durable."""
        engine = self._engine
        await wait_for(lambda done, fail: engine.submit(topic, Marked([mark]), True, done, fail))
