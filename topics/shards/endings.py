"""Topics with more lifetimes over than fit a turn of the loop: 500,000 records whose own time ended together.

They go in steps (`Engine.expire`), each with a delete in the log, and everybody else is served between them. Who wants
something of such a topic waits, in the order of arrival, until it is done: so nobody is shown or told of what is over,
and no cap evicts others for it. Meanwhile the topic is held, as for a large write: further writes wait for those who
found it behind, who may have seqs already. After a crash nothing is left over: what is over follows from the time and
the log.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import trio

from topics.core.topic import Topic
from topics.shards.answers import Fail
from topics.shards.slices import in_slices

if TYPE_CHECKING:
    from topics.shards.engine import Engine

Command = Callable[[], None]


class _Line:
    """Those who wait for one topic."""

    __slots__ = ("commands", "holds")

    def __init__(self) -> None:
        self.commands: deque[Command] = deque()
        self.holds = False  # else a large write holds the topic already, and releases it


class Endings:
    """The topics of a shard that are behind."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self._behind: dict[Topic, _Line] = {}
        self._nursery: trio.Nursery | None = None
        self._works = False

    def later(self, topic: Topic, command: Command, fail: Fail = lambda _: None) -> None:
        """Run a command when nothing of the topic is over any more, behind those that wait already. Its refusal goes to
        `fail`. It must see to a topic that is gone."""
        line = self._behind.setdefault(topic, _Line())
        if topic.held is None:
            topic.held = []
            line.holds = True
        line.commands.append(lambda: self._engine.redo(command, fail))
        if self._nursery is not None and not self._works:
            self._works = True
            self._nursery.start_soon(self._work)

    async def wait(self, topic: Topic) -> None:
        """Until nothing of it is over."""
        while not self._engine.expire(topic):
            done = trio.Event()
            self.later(topic, done.set)
            await done.wait()

    def finish(self, topic: Topic) -> None:
        """The same without a loop, which it may hold."""
        while not self._engine.expire(topic):
            pass

    def open(self, nursery: trio.Nursery) -> None:
        """From now on there is a loop. It has a task for this only while a topic is behind; who waits when that is
        cancelled gets no answer."""
        self._nursery = nursery

    def close(self) -> None:
        self._nursery = None

    async def _work(self) -> None:
        await in_slices(self.steps())
        self._works = False

    def steps(self) -> Iterator[None]:
        """Until no topic is behind, each of them in its turn."""
        while self._behind:
            for topic in list(self._behind):
                if self._engine.expire(topic):
                    self._serve_one(topic, self._behind[topic])
                yield

    def _serve_one(self, topic: Topic, line: _Line) -> None:
        """Of those who wait. If it finds that more is over by now, it waits again."""
        if not line.commands:
            del self._behind[topic]
            if line.holds:
                self._engine.release(topic, lambda: None)
        elif not line.holds:
            line.commands.popleft()()
        else:
            held, topic.held = topic.held or [], None
            line.commands.popleft()()
            topic.held = [*(topic.held or ()), *held]
