"""Consumer groups: a place in a topic that the server remembers for its readers, and who reads there.

A group belongs to one life of its topic: it is kept by the topic's id, which no later topic of that name gets. Its
cursor is the last seq that its consumers are done with. Reading does not move it; an acknowledgement moves it forward,
a seek anywhere. One consumer is active at a time: an id that the group has not seen takes over, and the one before is
refused from then on, until it says that it means to take the group back.

`decide_…` and `check_…` refuse and change nothing. `apply` never refuses; it runs when an event happens and when it is
replayed. Stored form: a record of the groups log is a msgpack array of events, each an array of

    kind, topic id, time, group, then
    1 kept     cursor, consumer, those it was taken over from (the latest last), time of creation, time of the last move
    2 moved    cursor
    3 removed
"""

from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Any, Literal

import msgspec

from topics import errors, limits
from topics.core.requests import U64_MAX
from topics.core.seek import cursor_at
from topics.core.topic import Topic
from topics.errors import TopicsError, invalid
from topics.malformed import MALFORMED

KEPT, MOVED, REMOVED = 1, 2, 3


class AtTime(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The records from this time on."""

    ts: int


Where = Literal["earliest", "latest"] | int | AtTime


class Group(msgspec.Struct):
    """One group of one topic. The last three fields are of this life of the shard and are not stored."""

    name: str
    cursor: int  # what is logged: whether something moves it is decided by this
    created_ms: int
    moved_ms: int
    consumer: str = ""  # the active one; empty: nobody has said who it is
    left: tuple[str, ...] = ()  # those it was taken over from, the latest last
    shown: int = 0  # the cursor that is durable, and so the one that is read from and told
    published: bool = True  # the group itself is durable, and may be told
    moves: int = 0  # how often `shown` has changed

    def show(self, cursor: int) -> None:
        """What moved it is durable."""
        self.shown = cursor
        self.moves += 1


class GroupEvent(msgspec.Struct, frozen=True, array_like=True):
    kind: int
    topic_id: int
    ts: int
    group: str
    fields: tuple[Any, ...] = ()


class BadGroupEvent(ValueError):
    """A record of the groups log that is none of this version."""


_events = msgspec.msgpack.Decoder(list[GroupEvent])


class _StoredGroup(msgspec.Struct, array_like=True):
    cursor: int
    consumer: str
    left: list[str]
    created_ms: int
    moved_ms: int


class _StoredMove(msgspec.Struct, array_like=True):
    cursor: int


_FIELDS: dict[int, Any] = {KEPT: _StoredGroup, MOVED: _StoredMove}
_encode = msgspec.msgpack.Encoder().encode


def encode(events: Iterable[GroupEvent]) -> bytes:
    return _encode(list(events))


def decode(record: bytes) -> list[GroupEvent]:
    """Raises BadGroupEvent."""
    try:
        events = _events.decode(record)
        for event in events:
            if (wanted := _FIELDS.get(event.kind)) is not None:
                msgspec.convert(event.fields, wanted)
    except MALFORMED as error:
        raise BadGroupEvent(str(error)) from error
    return events


# --- deciding -----------------------------------------------------------------------------------------------------


def check_where(where: Where, field: str) -> None:
    """What can be said without the topic. Raises `invalid_request`."""
    if isinstance(where, AtTime) and not 0 <= where.ts <= U64_MAX:
        raise invalid(f"{field}.ts must be a whole number of milliseconds from 0 on", field=field)
    if isinstance(where, int) and where < 0:
        raise invalid(f"{field} must not be negative", field=field)


def cursor_of(topic: Topic, where: Where, field: str, now_ms: int) -> int:
    """The cursor that `where` stands for now. The caller has expired the topic. Raises `invalid_request`."""
    check_where(where, field)
    if where == "latest":
        return topic.head_seq
    if where == "earliest":
        return topic.earliest_seq - 1
    if isinstance(where, AtTime):
        return cursor_at(topic, where.ts, now_ms)
    assert isinstance(where, int)
    check_seq(topic, where, field)
    return where


def check_seq(topic: Topic, seq: int, field: str) -> None:
    """A group cannot be done with what does not exist yet."""
    if not 0 <= seq <= topic.head_seq:
        raise invalid(
            f"{field} must be a seq from 0 to {topic.head_seq}, the topic's head_seq",
            field=field,
            head_seq=topic.head_seq,
        )


def takes_over(group: Group, consumer: str | None, *, back: bool = False) -> bool:
    """Whether a reader that comes makes `consumer` the active one. Raises `taken_over`; without an id it is nobody."""
    if consumer is None or consumer == group.consumer:
        return False
    if consumer in group.left and not back:
        raise taken_over(group, consumer)
    return True


def comes_first(group: Group, consumer: str | None) -> bool:
    """The same of a call that goes on with what was read: it takes over from nobody, whoever it is."""
    if consumer is None or consumer == group.consumer:
        return False
    if group.consumer:
        raise taken_over(group, consumer)
    return True


def check_active(group: Group, consumer: str | None) -> None:
    """Of a call that is under way: whether it may still answer."""
    if consumer is not None and consumer != group.consumer:
        raise taken_over(group, consumer)


def taken_over(group: Group, consumer: str) -> TopicsError:
    return _lost(
        group,
        consumer,
        f'another consumer has group "{group.name}" now; fetch with take_over:true, or as a consumer with a new id, to '
        "take it over",
    )


def taken_over_by_itself(group: Group, consumer: str) -> TopicsError:
    """Of a stream: the same consumer has opened another one."""
    return _lost(group, consumer, f'another stream of the same consumer has group "{group.name}" now')


def _lost(group: Group, consumer: str, message: str) -> TopicsError:
    return TopicsError(
        errors.TAKEN_OVER, message, {"group": group.name, "consumer": consumer, "active": group.consumer}
    )


def made(topic: Topic, name: str, cursor: int, consumer: str | None, now_ms: int) -> GroupEvent:
    """A new group."""
    return kept(topic, Group(name, cursor, now_ms, now_ms, consumer or ""), now_ms)


def passed_on(topic: Topic, group: Group, consumer: str, now_ms: int) -> GroupEvent:
    """The group, with another consumer."""
    before = [*group.left, *([group.consumer] if group.consumer else ())]
    left = tuple(other for other in before if other != consumer)[-limits.GROUP_LEFT_MAX :]
    return kept(topic, msgspec.structs.replace(group, consumer=consumer, left=left), now_ms)


def kept(topic: Topic, group: Group, now_ms: int) -> GroupEvent:
    fields = (group.cursor, group.consumer, group.left, group.created_ms, group.moved_ms)
    return GroupEvent(KEPT, topic.id, now_ms, group.name, fields)


def moved(topic: Topic, group: Group, cursor: int, now_ms: int) -> GroupEvent:
    return GroupEvent(MOVED, topic.id, now_ms, group.name, (cursor,))


def removed(topic: Topic, group: Group, now_ms: int) -> GroupEvent:
    return GroupEvent(REMOVED, topic.id, now_ms, group.name)


# --- applying -----------------------------------------------------------------------------------------------------


def apply(groups: dict[str, Group], event: GroupEvent) -> None:
    """Change a topic's groups by one event."""
    group = groups.get(event.group)
    if event.kind == KEPT:
        cursor, consumer, left, created_ms, moved_ms = event.fields[:5]
        if group is None:
            group = groups[event.group] = Group(event.group, cursor, created_ms, moved_ms, shown=cursor)
        group.cursor, group.moved_ms = cursor, moved_ms
        group.consumer, group.left = consumer, tuple(left)
    elif event.kind == MOVED and group is not None:
        group.cursor, group.moved_ms = event.fields[0], event.ts
    elif event.kind == REMOVED:
        groups.pop(event.group, None)


def settle(topic: Topic) -> Iterator[Group]:
    """After a crash took the end of a topic: put cursors back that were beyond it, so that what comes next is read.

    A topic that routers lead to gets its end again, from its source, at the seqs it had.
    """
    for group in (topic.groups or {}).values():
        if group.cursor > topic.head_seq and topic.derived is None:
            group.cursor = topic.head_seq
            yield group


# --- reading ------------------------------------------------------------------------------------------------------


def lag_of(topic: Topic, group: Group) -> int:
    """How many seqs it is behind."""
    return max(0, topic.head_seq - group.shown)


_name = attrgetter("name")


def shown(topic: Topic) -> list[Group]:
    """Those that may be shown, by name."""
    groups = topic.groups
    return sorted([group for group in groups.values() if group.published], key=_name) if groups else []
