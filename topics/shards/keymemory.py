"""What the engine knows of keys: those that are remembered, and those whose write is still on its way to disk.

A write that brings a key which is on its way waits for it and then looks again: until the first one is durable nobody
may be told its seq. Keys on their way count against the bound of remembered ones, so that it holds whatever comes.
"""

from collections.abc import Callable, Iterator

from topics import limits
from topics.core import state as core
from topics.core.dedup import Sifted, retell, sift
from topics.core.events import Appended
from topics.core.idempotency import digest_key
from topics.core.requests import Append
from topics.core.state import ShardState
from topics.core.terms import check_topic
from topics.core.topic import Topic
from topics.shards.answers import Appending, Retries

SWEEP_MS = 1000


class KeyMemory:
    def __init__(self, state: ShardState) -> None:
        self._state = state
        self._swept_ms = 0

    # --- on their way ---------------------------------------------------------------------------------------------

    def pend(self, topic: Topic, event: Appended) -> None:
        """The keys of a write that waits for its sync."""
        topic.pending_keys = topic.pending_keys if topic.pending_keys is not None else {}
        for digest in _keys_of(event):
            topic.pending_keys[digest] = []
            self._state.keys_coming += 1

    def settle(self, topic: Topic, event: Appended) -> Retries:
        """It waits no more; the writes that waited for it."""
        waiting: Retries = []
        for digest in _keys_of(event):
            self._state.keys_coming -= 1
            if topic.pending_keys is not None:
                waiting += topic.pending_keys.pop(digest, ())
        return waiting

    def waits(self, topic: Topic, request: Append, again: Callable[[], None]) -> bool:
        """Whether a key of this write is on its way; then `again` is called when that is over."""
        pending = topic.pending_keys
        if not pending:
            return False
        if request.key is not None and (waiting := pending.get(digest_key(request.key))) is not None:
            waiting.append(again)
            return True
        for _, digest in request.dedups:
            if (waiting := pending.get(digest)) is not None:
                waiting.append(again)
                return True
        return False

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
        """At the bound, drop what may be dropped in all topics, but look at them once a second at most."""
        keys = core.key_count(request)
        full = keys and self._state.keys + self._state.keys_coming + keys > limits.IDEMPOTENCY_KEYS_MAX
        if full and now_ms - self._swept_ms >= SWEEP_MS:
            self._swept_ms = now_ms
            core.forget_keys(self._state, now_ms)


def _keys_of(event: Appended) -> Iterator[bytes]:
    if event.key:
        yield event.key
    for _, digest in event.dedups:
        yield digest
