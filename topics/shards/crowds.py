"""Commands that waited and may go on, very many of them: retries of a key that was on its way, writes behind a change
of their topic or behind a large one.

Some go on at once, the rest a few a turn of the loop. Those of one topic keep their order: what comes for it meanwhile
waits behind them (`Topic.parked`), and has two of them go on for it, so that a crowd ends however much comes.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable

from topics import limits
from topics.core.topic import Topic

Command = Callable[[], None]  # it tells its own caller what goes wrong


class Crowds:
    def __init__(self) -> None:
        self._loose: deque[Command] = deque()  # in nobody's way
        self._lines: dict[Topic, deque[Command]] = {}
        self._runs = False
        self.on_more: Callable[[], None] = self.finish  # where there is a loop, it is to call `run` again and again

    @property
    def waits(self) -> bool:
        return bool(self._loose or self._lines)

    def let_go(self, commands: Iterable[Command]) -> None:
        """They wait no more; nobody waits behind them."""
        self._loose.extend(commands)
        self._begin()

    def let_pass(self, topic: Topic, commands: list[Command]) -> None:
        """Nothing holds these commands of a topic up any more. Later ones come behind them."""
        if topic.removing:  # who comes next does not find this topic, nor its line, but a new one's: so all go on now
            for command in commands:
                command()
        elif topic in self._lines:  # they were in front once
            self._lines[topic].extendleft(reversed(commands))
        elif topic.parked is not None:
            topic.parked += commands
        elif commands:
            self._lines[topic] = deque(commands)
            topic.parked = []
        self._begin()

    def hasten(self, topic: Topic) -> None:
        """Somebody has come to wait behind those of a topic."""
        for _ in range(2):
            if topic in self._lines and not self._runs:
                self._run_one(topic)

    def run(self) -> bool:
        """As many as fit into a short while, and one in any case; whether that was all."""
        until = time.perf_counter_ns() + limits.CROWD_NS
        while self.waits and not self._runs:
            self._run_one(None if self._loose else next(iter(self._lines)))
            if time.perf_counter_ns() > until:
                break
        return not self.waits

    def finish(self) -> None:
        """All of them, now."""
        while not self._runs and not self.run():
            pass

    def _begin(self) -> None:
        if not self._runs and not self.run():
            self.on_more()

    def _run_one(self, topic: Topic | None) -> None:
        self._runs = True
        try:
            if topic is None:
                self._loose.popleft()()
            else:
                self._pass_one(topic, self._lines[topic])
        finally:
            self._runs = False

    def _pass_one(self, topic: Topic, line: deque[Command]) -> None:
        behind, topic.parked = topic.parked or [], None  # it is not to wait for itself
        try:
            line.popleft()()
        finally:
            self._close_up(topic, line, behind)

    def _close_up(self, topic: Topic, line: deque[Command], behind: list[Command]) -> None:
        if topic.parked is not None:  # it makes others wait: all of these
            topic.parked += [*line, *behind]
            del self._lines[topic]
            return
        line.extend(behind)
        if line:
            topic.parked = []
        else:
            del self._lines[topic]
