"""Consumer groups of a shard: durable cursors in its topics, and one active consumer each.

    method        head                     body     reply head      reply body
    group.put     topic, group             request  created, perf   open fragment
    group.state   topic, group                      perf            open fragment
    group.list    topic                             perf            open fragment
    group.remove  topic, group                      perf            open fragment
    group.fetch   topic, group,            request  perf            open fragment
                  wait (false: answer now)
    group.ack     topic, group             request  cursor, perf    open fragment
    group.seek    topic, group             request  cursor, perf    open fragment
    group.attach  see group_streams.py

What changes a group is in the groups log (grouplog.py) and durable before it is answered, whatever the class of the
topic. A crash before that leaves the group as it was: records may be fetched again, none is passed over.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

from topics import errors, limits
from topics.core import groups as core
from topics.core import replies
from topics.core.derivation import is_blocked
from topics.core.group_requests import decode_ack, decode_fetch, decode_group, decode_seek
from topics.core.groups import Group, GroupEvent, Where
from topics.core.names import check_group_name, check_topic_name
from topics.core.topic import Topic
from topics.errors import TopicsError
from topics.rpc.calls import Call, Handler
from topics.shards.diffs import Diffs
from topics.shards.fetches import FetchLook
from topics.shards.group_streams import GroupStreams
from topics.shards.grouplog import GroupLog
from topics.shards.heads import AttachGroupHead, FetchHead, GroupHead, TopicHead, read_head
from topics.shards.settling import Settling
from topics.shards.store import Store

METHODS = tuple(f"group.{call}" for call in ("put", "state", "list", "remove", "fetch", "ack", "seek", "attach"))
Then = Callable[[Group], None]
Takes = Callable[[Group, str], bool]  # whether the call makes the consumer the active one; raises `taken_over`
Perf = Callable[[], dict[str, float]]
GroupRow = tuple[str, str, int, int]  # topic, group, cursor, lag


class Entry(NamedTuple):
    """A call that goes on with a group, as soon as that is there and durable."""

    call: Call
    topic: Topic
    name: str
    then: Then
    consumer: str | None = None
    start: Where | None = None  # of a group that is made by it; none: it must be there
    takes: Takes = core.takes_over
    made: Then | None = None  # instead of `then`, if it is this call that makes it


class Groups:
    def __init__(
        self, store: Store, log: GroupLog, diffs: Diffs, settling: Settling, timer: Callable[[], Perf]
    ) -> None:
        self._bounds = store.bounds
        self._engine = store.engine
        self._log = log
        self._diffs = diffs
        self._settling = settling
        self._timer = timer
        self._streams = GroupStreams()

    def handlers(self) -> Mapping[str, Handler]:
        calls = (self.put, self.state, self.page, self.remove, self.fetch, self.ack, self.seek, self.attach)
        return dict(zip(METHODS, calls, strict=True))

    # --- what there is --------------------------------------------------------------------------------------------

    def state(self, call: Call) -> None:
        topic, name = self._topic_of(call)
        group = self._find(topic, name)
        if not group.published:
            self._engine.log.when_synced(lambda: self._engine.redo(lambda: self.state(call), call.fail))
            return
        self._engine.expire(topic)
        call.reply({"perf": {}}, replies.group_state(topic, group))

    def page(self, call: Call) -> None:
        topic = self._engine.state.find(check_topic_name(read_head(call.head, TopicHead).topic))
        self._engine.expire(topic)
        call.reply({"perf": {}}, replies.group_list(topic))

    def rows(self, prefixes: Sequence[str]) -> Iterator[GroupRow]:
        """For metrics, in the order of names. Whatever may happen between two of them."""
        allowed = tuple(prefixes)
        for topic in sorted(self._log.topics.values(), key=attrgetter("name")):
            if topic.published and (not allowed or topic.name.startswith(allowed)):
                for group in core.shown(topic):
                    yield topic.name, group.name, group.shown, core.lag_of(topic, group)

    @property
    def count(self) -> int:
        return self._log.count

    # --- changes --------------------------------------------------------------------------------------------------

    def put(self, call: Call) -> None:
        topic, name = self._topic_of(call)
        start = decode_group(call.body, self._bounds)
        perf = self._timer()

        def done(group: Group, *, created: bool = False) -> None:
            call.reply({"created": created, "perf": perf()}, replies.group_state(topic, group, created=created))

        self._enter(Entry(call, topic, name, done, start=start, made=partial(done, created=True)))

    def remove(self, call: Call) -> None:
        topic, name = self._topic_of(call)
        group = (topic.groups or {}).get(name)
        perf = self._timer()

        def done() -> None:
            call.reply(
                {"perf": perf()}, replies.opened({"topic": topic.name, "group": name, "deleted": group is not None})
            )

        if group is None:
            done()
            return
        self._change(call, topic, core.removed(topic, group, self._engine.now()), done)
        self._streams.end(topic, group, group_not_found(topic.name, name))
        self._engine.wake_readers(topic)

    def ack(self, call: Call) -> None:
        topic, name = self._topic_of(call)
        request = decode_ack(call.body, self._bounds)
        group = self._find(topic, name)
        core.comes_first(group, request.consumer)  # the refusal is decided before the seq is looked at
        core.check_seq(topic, request.seq, "seq")
        perf = self._timer()

        def move(group: Group) -> None:
            self._check_still(topic, group, request.consumer)
            if request.seq > group.cursor:
                event = core.moved(topic, group, request.seq, self._engine.now())
                self._change(call, topic, event, lambda: self._reply_place(call, topic, group, perf, moved=True))
            elif request.seq > group.shown:  # the same was asked for before, and is on its way to the disk
                self._engine.log.when_synced(lambda: self._engine.redo(lambda: move(group), call.fail))
            else:
                self._reply_place(call, topic, group, perf, moved=False)

        self._enter(Entry(call, topic, name, move, request.consumer, takes=core.comes_first))

    def seek(self, call: Call) -> None:
        topic, name = self._topic_of(call)
        request = decode_seek(call.body, self._bounds)
        perf = self._timer()

        def move(group: Group) -> None:
            self._check_still(topic, group, request.consumer)
            self._engine.expire(topic)
            cursor = core.cursor_of(topic, request.to, "to", self._engine.now())
            event = core.moved(topic, group, cursor, self._engine.now())
            is_moved = cursor != group.cursor

            def done() -> None:
                self._reply_place(call, topic, group, perf, moved=is_moved)
                self._streams.moved(topic, group)
                self._engine.wake_readers(topic)

            self._change(call, topic, event, done)

        core.comes_first(self._find(topic, name), request.consumer)
        core.cursor_of(topic, request.to, "to", self._engine.now())  # what cannot be is refused before all else
        entry = Entry(call, topic, name, move, request.consumer, takes=core.comes_first)
        self._when_told(call, topic, request.to, lambda: self._enter(entry))

    def _reply_place(self, call: Call, topic: Topic, group: Group, perf: Perf, *, moved: bool) -> None:
        call.reply({"cursor": group.shown, "perf": perf()}, replies.group_moved(topic, group, moved=moved))

    # --- reading --------------------------------------------------------------------------------------------------

    def fetch(self, call: Call) -> None:
        topic, name = self._topic_of(call)
        request = decode_fetch(call.body, self._bounds)
        wait_ms = request.query.wait_ms if read_head(call.head, FetchHead).wait else 0

        def look(group: Group) -> None:
            self._diffs.look(FetchLook(call, topic, group, request, wait_ms, group_not_found))

        takes = partial(core.takes_over, back=request.take_over)
        self._enter(Entry(call, topic, name, look, request.consumer, request.start, takes))

    def attach(self, call: Call) -> None:
        topic, name = self._topic_of(call)
        head = read_head(call.head, AttachGroupHead)

        def begin(group: Group) -> None:
            self._check_still(topic, group, head.consumer)
            self._engine.expire(topic)
            self._streams.attach(topic, group, call, head.consumer)

        takes = core.comes_first if head.start is None else partial(core.takes_over, back=head.back)
        self._enter(Entry(call, topic, name, begin, head.consumer, head.start, takes))

    # --- inside ---------------------------------------------------------------------------------------------------

    def _topic_of(self, call: Call) -> tuple[Topic, str]:
        head = read_head(call.head, GroupHead)
        name = check_topic_name(head.topic)
        return self._engine.state.find(name), check_group_name(head.group)

    def _find(self, topic: Topic, name: str) -> Group:
        group = (topic.groups or {}).get(name)
        if group is None:
            raise group_not_found(topic.name, name)
        return group

    def _check_still(self, topic: Topic, group: Group, consumer: str | None) -> None:
        """Of a call that had to wait: the group may be gone by now, or somebody else's."""
        if (topic.groups or {}).get(group.name) is not group:
            raise group_not_found(topic.name, group.name)
        core.check_active(group, consumer)

    def _enter(self, entry: Entry) -> None:
        """Go on with the group: made if it is not there and there is a `start`, its consumer's if it `takes` it.

        `then` runs when all that is durable. Raises, or fails the call, if it is refused.
        """
        call, topic, consumer = entry.call, entry.topic, entry.consumer
        group = (topic.groups or {}).get(entry.name)
        if group is None and entry.start is not None:
            self._when_told(call, topic, entry.start, lambda: self._make(entry))
        elif group is None:
            raise group_not_found(topic.name, entry.name)
        elif not group.published:
            self._engine.log.when_synced(lambda: self._engine.redo(lambda: self._enter(entry), call.fail))
        elif consumer is not None and entry.takes(group, consumer):
            event = core.passed_on(topic, group, consumer, self._engine.now())
            self._change(call, topic, event, lambda: entry.then(group))
            self._streams.passed_on(topic, group)
            self._engine.wake_readers(topic)
        else:
            entry.then(group)

    def _make(self, entry: Entry) -> None:
        """A new group, unless somebody else made it while we waited for copies."""
        topic, name = entry.topic, entry.name
        if self._engine.state.topics.get(topic.name) is not topic:
            raise errors.topic_not_found(topic.name)
        if name in (topic.groups or {}):
            self._enter(entry)
            return
        self._check_room(topic)
        self._engine.expire(topic)
        now = self._engine.now()
        assert entry.start is not None
        event = core.made(topic, name, core.cursor_of(topic, entry.start, "from", now), entry.consumer, now)

        def done() -> None:
            group.published = True
            (entry.made or entry.then)(group)

        self._change(entry.call, topic, event, done)
        assert topic.groups is not None
        group = topic.groups[name]
        group.published = False

    def _check_room(self, topic: Topic) -> None:
        for limit, most, held, where in (
            ("groups_per_topic", limits.GROUPS_PER_TOPIC_MAX, len(topic.groups or ()), f'topic "{topic.name}" has'),
            ("groups_per_shard", limits.GROUPS_PER_SHARD_MAX, self._log.count, "the shard of this topic has"),
        ):
            if held >= most:
                message = f"{where} as many consumer groups as there may be, {most}: delete some that nobody uses"
                detail = {"limit": limit, "max": most, "retry_after_ms": 1000}
                raise TopicsError(errors.THROTTLED, message, detail)

    def _change(self, call: Call, topic: Topic, event: GroupEvent, done: Callable[[], None]) -> None:
        """Log and apply. What follows it later is refused to its own caller."""
        if self._engine.state.topics.get(topic.name) is not topic or topic.removing:
            raise errors.topic_not_found(topic.name)
        self._log.note(topic, event, lambda: self._engine.redo(done, call.fail), call.fail)

    def _when_told(self, call: Call, topic: Topic, where: Where, then: Callable[[], None]) -> None:
        """Go on when the topic shows what `where` is about: copies that it lacks come first."""
        if topic.derived is None or isinstance(where, int) or self._is_complete(topic):
            then()
        else:
            call.run(self._tell_later, call, topic, then)

    def _is_complete(self, topic: Topic) -> bool:
        return self._settling.is_settled(topic) and not is_blocked(topic, 0)

    async def _tell_later(self, call: Call, topic: Topic, then: Callable[[], None]) -> None:
        await self._settling.wait(topic)
        await self._settling.wait_for_refill(topic, 0)
        then()

    def topic_removed(self, topic: Topic) -> None:
        """Its groups went with it. A fetch that waits is told by its look."""
        for group in (topic.groups or {}).values():
            self._streams.end(topic, group, errors.topic_not_found(topic.name))
        self._log.forget(topic)


def group_not_found(topic: str, group: str) -> TopicsError:
    message = f'topic "{topic}" has no consumer group "{group}"; a fetch or a PUT creates it'
    detail: dict[str, Any] = {"topic": topic, "group": group}
    return TopicsError(errors.GROUP_NOT_FOUND, message, detail)
