"""The call `group.attach`: a gateway's stream that reads for a consumer group, told what happens to the group.

    head    topic, group, consumer, start (of a group that is made by it), back (take it back)
    items   cursor, epoch, head_seq, earliest_seq: where to begin; again when somebody has moved the group

It ends with an error: `taken_over` when another consumer or another stream of the same one comes, `group_not_found`
or `topic_not_found` when there is nothing left to read for. Records come over `follow` like those of anybody else.
"""

from functools import partial

from topics import errors
from topics.core import groups as core
from topics.core.groups import Group
from topics.core.topic import Topic
from topics.errors import TopicsError
from topics.rpc.calls import Call

Key = tuple[int, str]  # topic id, group


class GroupStream:
    __slots__ = ("_call", "consumer")

    def __init__(self, call: Call, consumer: str) -> None:
        self._call = call
        self.consumer = consumer

    def tell(self, topic: Topic, group: Group) -> None:
        item = {
            "cursor": min(group.shown, topic.head_seq),
            "epoch": topic.epoch,
            "head_seq": topic.head_seq,
            "earliest_seq": topic.earliest_seq,
        }
        if not self._call.finished and not self._call.try_send(item):  # it comes again, and is told then
            self.end(TopicsError(errors.NOT_READY, "the stream does not take what it is told"))

    def end(self, error: TopicsError) -> None:
        if not self._call.finished:
            self._call.fail(error)


class GroupStreams:
    """At most one for each group."""

    def __init__(self) -> None:
        self._streams: dict[Key, GroupStream] = {}

    def attach(self, topic: Topic, group: Group, call: Call, consumer: str) -> None:
        key = topic.id, group.name
        stream = GroupStream(call, consumer)
        before, self._streams[key] = self._streams.get(key), stream
        if before is not None:
            before.end(core.taken_over_by_itself(group, consumer))  # another consumer would have ended it (passed_on)
        call.on_cancel(partial(self._leave, key, stream))
        stream.tell(topic, group)

    def _leave(self, key: Key, stream: GroupStream) -> None:
        if self._streams.get(key) is stream:
            del self._streams[key]

    def moved(self, topic: Topic, group: Group) -> None:
        stream = self._streams.get((topic.id, group.name))
        if stream is not None:
            stream.tell(topic, group)

    def passed_on(self, topic: Topic, group: Group) -> None:
        """Another consumer is the active one."""
        stream = self._streams.get((topic.id, group.name))
        if stream is not None and stream.consumer != group.consumer:
            self.end(topic, group, core.taken_over(group, stream.consumer))

    def end(self, topic: Topic, group: Group, error: TopicsError) -> None:
        stream = self._streams.pop((topic.id, group.name), None)
        if stream is not None:
            stream.end(error)
