"""The call `group.fetch`: a diff from where a consumer group stands.

While it waits, the group may be moved, removed, or taken over; each of these wakes it, and it looks again from where
the group is then, or is refused.
"""

from collections.abc import Callable

import msgspec

from topics.core import groups as core
from topics.core import replies
from topics.core.diff import Buffer, Plan
from topics.core.group_requests import Fetch
from topics.core.groups import Group
from topics.core.topic import Topic
from topics.errors import TopicsError
from topics.rpc.calls import Call
from topics.shards.diffs import Look
from topics.shards.engine import Engine


class FetchLook(Look):
    __slots__ = ("_gone", "_group", "_moves", "_place", "_request")

    def __init__(
        self,
        call: Call,
        topic: Topic,
        group: Group,
        request: Fetch,
        wait_ms: int,
        gone: Callable[[str, str], TopicsError],
    ) -> None:
        super().__init__(call, topic.name, request.query, wait_ms)
        self._group = group
        self._request = request
        self._moves = -1
        self._place = b""
        self._gone = gone
        self._begin(topic)

    def _begin(self, topic: Topic) -> None:
        """From where the group stands. The head may be behind that, while copies are made again after a crash."""
        self._moves = self._group.moves
        self._place = replies.group_place(self._group)  # also if the group moves on while records are read
        from_seq = min(self._group.shown, topic.head_seq)
        self.asked = self.query = msgspec.structs.replace(self.query, from_seq=from_seq)

    def is_put_off(self, engine: Engine, topic: Topic, again: Callable[[], None]) -> bool:
        group = self._group
        if topic.groups is None or topic.groups.get(group.name) is not group:
            raise self._gone(topic.name, group.name)
        core.check_active(group, self._request.consumer)
        if group.moves != self._moves:
            self._begin(topic)
        return False

    def body(self, topic: Topic, plan: Plan, pieces: list[Buffer]) -> list[Buffer]:
        return [*super().body(topic, plan, pieces), self._place]
