"""A book: a durable map from keys to bytes, kept in one hidden topic.

An entry is a record whose tag is the key. A new value is appended first and the old record deleted behind it in the
same log: whatever a crash keeps of the two, the newest record of a key is its last value, and `load` keeps that one.
What else it finds is deleted with the next event that deletes. A removal is one event over all records of its keys,
so a removed key does not come back after its ack.

In memory is a seq per key, not the values: they are read back when they are asked for. Nothing scans.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

import msgspec

from topics import limits
from topics.core.block import BadBlock
from topics.core.chunk import Chunk
from topics.core.ranges import SeqRanges
from topics.core.requests import Append, RecordIn
from topics.malformed import MALFORMED
from topics.shards import hidden
from topics.shards.answers import Done, Fail
from topics.shards.store import Store

log = logging.getLogger(__name__)
T = TypeVar("T")


class BadEntry(ValueError):
    """A key or a value that is not what its book keeps."""


def decode_entry(value: bytes, kind: type[T]) -> T:
    """The value of a key, of a book that keeps such structs. Raises BadEntry."""
    try:
        return msgspec.msgpack.decode(value, type=kind)
    except MALFORMED as error:
        raise BadEntry(str(error)) from error


class Book:
    """For the loop, but for `load`, which is for recovery and may block."""

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._engine = store.engine
        self._name = name
        self._seqs: dict[str, int] = {}  # of what is logged, durable or not
        self._coming: dict[str, bytes] = {}  # values that are not durable yet
        self._stale: list[int] = []  # records that an earlier life had not deleted yet

    def __len__(self) -> int:
        return len(self._seqs)

    def __contains__(self, key: str) -> bool:
        return key in self._seqs

    # --- recovery -------------------------------------------------------------------------------------------------

    def load(self) -> Iterator[tuple[str, bytes]]:
        """Every key with its value. To be exhausted once, before anything else.

        An entry that cannot be read is logged and left out; its record stays where it is. So it is with one whose
        value is none, see `load_as`.
        """
        topic = self._engine.state.topics.get(self._name)
        if topic is None:
            return
        for chunk in list(topic.chunks):
            for key, seq in self._keys_in(chunk):
                if key in self._seqs:
                    self._stale.append(self._seqs[key])
                self._seqs[key] = seq
        newest = set(self._seqs.values())
        for chunk in list(topic.chunks):
            yield from self._entries_in(chunk, newest)

    def load_as(self, decode: Callable[[str, bytes], T]) -> Iterator[tuple[str, T]]:
        """The same with the values decoded; `decode` raises BadEntry."""
        for key, value in self.load():
            try:
                yield key, decode(key, value)
            except BadEntry as error:
                log.error("entry %r of %s is lost: %s", key, self._name, error)

    def _keys_in(self, chunk: Chunk) -> list[tuple[str, int]]:
        try:
            block = hidden.read_block(self._store, chunk)
        except BadBlock as error:
            log.error("entries %d to %d of %s are lost: %s", chunk.first_seq, chunk.last_seq, self._name, error)
            return []
        found = []
        for index in hidden.live_in(chunk):
            try:
                found.append((_key_of(block.tag(index)), chunk.first_seq + index))
            except BadEntry as error:
                log.error("entry %d of %s is lost: %s", chunk.first_seq + index, self._name, error)
        return found

    def _entries_in(self, chunk: Chunk, newest: set[int]) -> Iterator[tuple[str, bytes]]:
        wanted = [index for index in hidden.live_in(chunk) if chunk.first_seq + index in newest]
        if wanted:
            block = hidden.read_block(self._store, chunk)
            for index in wanted:
                yield _key_of(block.tag(index)), hidden.data_of(block, index)

    # --- reading --------------------------------------------------------------------------------------------------

    async def read(self, key: str) -> bytes | None:
        """The last value that was put; None if there is none or its block is damaged."""
        if key in self._coming:
            return self._coming[key]
        topic, seq = self._engine.state.topics.get(self._name), self._seqs.get(key)
        chunk = hidden.find(topic, seq) if topic is not None and seq is not None else None
        if chunk is None or seq is None:
            return None
        try:
            block = await hidden.fetch_block(self._store, chunk)
        except BadBlock as error:
            log.error("entry %d of %s is lost: %s", seq, self._name, error)
            return None
        return hidden.data_of(block, seq - block.first_seq)

    # --- changes --------------------------------------------------------------------------------------------------

    def put(self, key: str, value: bytes, done: Done, fail: Fail) -> None:
        """`done(None)` when the new value is durable. Raises if it is refused; then the old one stands."""
        self.put_all({key: value}, done, fail)

    def put_all(self, entries: Mapping[str, bytes], done: Done, fail: Fail) -> None:
        """All of them or none, in one event."""
        assert entries and all(len(key) <= limits.BOOK_KEY_MAX for key in entries)
        topic = hidden.open(self._engine, self._name)
        first_seq = topic.next_seq
        records = [RecordIn(msgspec.Raw(value), key) for key, value in entries.items()]
        request = Append(records, None, None, None, None, False)
        self._engine.append(self._name, request, lambda _: self._arrived(entries, done), fail)
        self._coming.update(entries)
        old = [self._seqs[key] for key in entries if key in self._seqs]
        self._seqs.update(zip(entries, range(first_seq, first_seq + len(records)), strict=True))
        self._delete(old, lambda _: None, lambda _: None)

    def _arrived(self, entries: Mapping[str, bytes], done: Done) -> None:
        for key, value in entries.items():
            if self._coming.get(key) is value:
                del self._coming[key]
        done(None)

    def remove(self, key: str, done: Done, fail: Fail) -> None:
        """`done(None)` when it can never come back, at once if it is not there."""
        self.remove_all([key], done, fail)

    def remove_all(self, keys: Iterable[str], done: Done, fail: Fail) -> None:
        """All of them or none, in one event."""
        known = [key for key in keys if key in self._seqs]
        if not known:
            done(None)
            return
        self._delete([self._seqs[key] for key in known], done, fail)
        for key in known:
            del self._seqs[key]
            self._coming.pop(key, None)

    def _delete(self, seqs: list[int], done: Done, fail: Fail) -> None:
        if not seqs:
            return
        ranges = SeqRanges.from_ascending(sorted({*seqs, *self._stale}))
        topic = hidden.open(self._engine, self._name)
        self._engine.delete_records(topic, 0, ranges, lambda _: done(None), fail)
        self._stale = []


def _key_of(tag: bytes) -> str:
    try:
        key: str = msgspec.json.decode(tag, type=str)
    except MALFORMED as error:
        raise BadEntry(f"its key cannot be read: {error}") from error
    return key
