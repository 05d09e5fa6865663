"""Letting go what is over: by the TTL of a topic, or by the lifetime that a record was written with.

The TTL takes the front of a topic and is not logged: what is over by the time of an event is over in its replay, too,
and the next checkpoint stores it. A record with a lifetime of its own goes from anywhere, so that is a delete in the
log, in front of whatever made somebody look. On a topic that has writes on their way to disk it takes its turn behind
them: a replay would do it in that order, and a cap evicts others if the two change places. Until then the record still
counts, but nobody is shown it.

A crash may take such a delete if it is not synced yet; then the record goes a second time, when it is looked at next.

If more lifetimes are over than fit a step, whoever looks has to wait until the others have gone, too (endings.py).
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from topics import limits
from topics.core import lifetimes
from topics.core.events import RecordsDeleted
from topics.core.topic import Topic

if TYPE_CHECKING:
    from topics.shards.engine import Engine


def expire(engine: "Engine", topic: Topic) -> bool:
    """Let go what is over by now, a step of it; whether that was all."""
    if topic.expiries is not None:
        _end_lifetimes(engine, topic)
    if topic.config.ttl_ms:
        _apply_ttl(engine, topic)
    return not lifetimes.are_over(topic, engine.state.now_ms)


def expire_all(engine: "Engine") -> Iterator[None]:
    """Let go what is over in topics that nobody touches, a step at a time: it must not fill the quota."""
    for topic in list(engine.state.by_id.values()):
        while topic.count and not engine.expire(topic):
            yield
        yield


def _apply_ttl(engine: "Engine", topic: Topic) -> None:
    """The next checkpoint has to store that they went, before their files go."""
    before, records, size = topic.evicted.ttl_seq, topic.count, topic.bytes
    topic.expire(engine.now())
    if topic.evicted.ttl_seq != before:
        engine.expired += records - topic.count
        engine.note_change(topic, records, size)


def _end_lifetimes(engine: "Engine", topic: Topic) -> None:
    now = engine.now()
    over = lifetimes.take_over(topic, now, limits.LIFETIMES_STEP)
    if over is None:
        return
    if topic.removing or engine.is_ending:  # the last event is in the log, and nothing may come behind that
        lifetimes.hide(topic, over)
        return

    hidden = lifetimes.hide(topic, over) if topic.pending else None

    def applied(records: int | None) -> None:
        engine.expired += records or 0
        if hidden is not None:
            lifetimes.unhide(topic, hidden)

    event = RecordsDeleted(topic.id, 0, over, now)
    if topic.config.durability == "ephemeral":
        engine.in_turn(topic, lambda: applied(engine.apply_resident(topic, event)), _ignore)
    else:
        engine.submit(topic, event, False, applied, _ignore)


def _ignore(error: Exception) -> None:
    """The log has failed: the shard starts again, and finds it again."""
