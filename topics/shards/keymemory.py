"""What the engine knows of keys: those that are remembered, and those whose write is still on its way to disk.

A write that brings a key which is on its way waits for it and then looks again: until the first one is durable nobody
may be told its seq. Keys on their way count against the bound of remembered ones, so that it holds whatever comes.

A write forgets the keys of its own topic whose window has passed. When much is remembered all topics are gone through,
some at a time.
"""

from collections.abc import Callable, Iterator

from topics import limits
from topics.core import state as core
from topics.core.coming import ComingKeys, Retries
from topics.core.dedup import Sifted, retell, sift
from topics.core.events import Appended
from topics.core.idempotency import digest_key
from topics.core.requests import Append
from topics.core.state import ShardState
from topics.core.terms import check_topic
from topics.core.topic import Topic
from topics.shards.answers import Appending
from topics.shards.graves import Graves

SWEEP_MS = 1000  # all topics are gone through so often at most
SWEEP_TOPICS = 256  # in one step


class KeyMemory:
    def __init__(self, state: ShardState, graves: Graves) -> None:
        self._state = state
        self._graves = graves
        self._swept_ms = 0
        self._to_sweep: list[int] = []  # ids of topics

    # --- on their way ---------------------------------------------------------------------------------------------

    def pend(self, topic: Topic, event: Appended) -> None:
        """The keys of a write that waits for its sync."""
        topic.coming = topic.coming if topic.coming is not None else ComingKeys()
        topic.coming.add(_keys_of(event), event.prepared)
        self._state.keys_coming += _key_count(event)

    def settle(self, topic: Topic, event: Appended) -> Retries:
        """It waits no more; the writes that waited for it."""
        self._state.keys_coming -= _key_count(event)
        return topic.coming.take(_keys_of(event), event.prepared) if topic.coming is not None else []

    def waits(self, topic: Topic, request: Append, again: Callable[[], None]) -> bool:
        """Whether a key of this write is on its way; then `again` is called when that is over."""
        if not topic.coming:
            return False
        waiting = topic.coming.waiting_for([digest_key(request.key)]) if request.key is not None else None
        if waiting is None:
            waiting = topic.coming.waiting_for([digest for _, digest in request.dedups])
        if waiting is not None:
            waiting.append(again)
        return waiting is not None

    # --- remembered -----------------------------------------------------------------------------------------------

    def recall(self, topic: Topic, request: Append, now_ms: int) -> Appending | None:
        """The answer to a write whose idempotency key is known."""
        found = core.find_key(topic, request, now_ms)
        if found is None:
            return None
        assert topic.keys is not None
        duplicates = retell(request, found, topic.keys, now_ms, topic.config.idempotency_window_ms)
        return Appending(topic.name, found.first_seq, found.records, topic.head_seq, False, True, duplicates)

    def sift(self, topic: Topic, request: Append, now_ms: int) -> Sifted:
        """The write without its duplicates, after a check of all of it: what is wrong is wrong in a duplicate, too."""
        if request.has_terms and not request.copied:
            check_topic(request.records, topic, now_ms)
        return sift(request, topic.keys, topic.next_seq, now_ms, topic.config.idempotency_window_ms)

    def make_room(self, request: Append, now_ms: int) -> None:
        """At the bound, forget what may be forgotten in some topics. `sweep` has been there before, and will be."""
        keys = core.key_count(request)
        if keys and self._state.keys + self._state.keys_coming + keys > limits.IDEMPOTENCY_KEYS_MAX:
            self._begin_sweep(now_ms)
            self._sweep_some(now_ms)

    def sweep(self, now_ms: int) -> Iterator[None]:
        """While the half of what may be is remembered, forget in all topics what may be forgotten. In small steps."""
        if self._state.keys * 2 < limits.IDEMPOTENCY_KEYS_MAX:
            return
        self._begin_sweep(now_ms)
        while self._to_sweep:
            self._sweep_some(now_ms)
            yield

    def _begin_sweep(self, now_ms: int) -> None:
        if not self._to_sweep and now_ms - self._swept_ms >= SWEEP_MS:
            self._swept_ms = now_ms
            self._to_sweep = list(self._state.by_id)

    def _sweep_some(self, now_ms: int) -> None:
        by_id = self._state.by_id
        for topic_id in self._to_sweep[-SWEEP_TOPICS:]:
            topic = by_id.get(topic_id)
            if topic is not None and topic.keys is not None:
                core.forget_keys(self._state, topic, now_ms)
                self._graves.note(topic)
        del self._to_sweep[-SWEEP_TOPICS:]


def _key_count(event: Appended) -> int:
    return event.dedup_count + bool(event.key)


def _keys_of(event: Appended) -> list[bytes]:
    """Without those that are prepared."""
    digests = [digest for _, digest in event.dedups]
    return [event.key, *digests] if event.key else digests
