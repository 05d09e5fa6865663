"""Remembered keys of one topic: idempotency key → the seqs its write was given, dedup key → the seq of its record.

Keys are kept as 128-bit BLAKE2 digests, so a key costs the same whatever its length and nobody can make two collide.
A key is forgotten only when its window has passed; the shard refuses new keys at its bound instead of dropping one.
A checkpoint stores the keys that came since the one before (`take_fresh`): a window may hold a million.

Stored form, 36 bytes a key: digest, first_seq u64, records u32, ts u64.
"""

import struct
from collections import deque
from collections.abc import Iterator
from hashlib import blake2b
from typing import NamedTuple

_KEY = struct.Struct("<16sQIQ")


class Remembered(NamedTuple):
    first_seq: int
    records: int
    ts: int


def digest_key(key: str) -> bytes:
    return blake2b(key.encode(), digest_size=16).digest()


def digest_record_key(key: str) -> bytes:
    """Of a `dedup_key`: never the digest of an idempotency key, although the two are kept side by side."""
    return blake2b(key.encode(), digest_size=16, person=b"record").digest()


class KeyWindow:
    __slots__ = ("_by_key", "_fresh", "_order")

    def __init__(self) -> None:
        self._by_key: dict[bytes, Remembered] = {}
        self._order: deque[tuple[int, bytes]] = deque()
        self._fresh: list[bytes] = []  # what no checkpoint has stored yet

    def __len__(self) -> int:
        return len(self._by_key)

    def find(self, digest: bytes, now_ms: int, window_ms: int) -> Remembered | None:
        found = self._by_key.get(digest)
        if found is None or now_ms - found.ts > window_ms:
            return None
        return found

    def add(self, digest: bytes, remembered: Remembered) -> None:
        self._fresh.append(digest)
        self._put(digest, remembered)

    def _put(self, digest: bytes, remembered: Remembered) -> None:
        self._by_key[digest] = remembered
        self._order.append((remembered.ts, digest))

    def forget_before(self, ts: int) -> int:
        """Drop the keys older than `ts`; how many went."""
        dropped = 0
        order = self._order
        while order and order[0][0] < ts:
            stamp, digest = order.popleft()
            found = self._by_key.get(digest)
            if found is not None and found.ts == stamp:
                del self._by_key[digest]
                dropped += 1
        return dropped

    def take_fresh(self, below_seq: int | None = None) -> list[bytes]:
        """The digests to store now; those of seqs from `below_seq` on have to wait."""
        known = [(digest, self._by_key[digest].first_seq) for digest in self._fresh if digest in self._by_key]
        taken = [digest for digest, seq in known if below_seq is None or seq < below_seq]
        self._fresh = [digest for digest, seq in known if below_seq is not None and seq >= below_seq]
        return taken

    def give_back(self, digests: list[bytes]) -> None:
        """They were not stored after all."""
        self._fresh = digests + self._fresh

    def encode(self, digests: list[bytes]) -> bytes:
        return b"".join([_KEY.pack(digest, *self._by_key[digest]) for digest in digests])

    def load(self, stored: bytes) -> None:
        for digest, remembered in _decode(stored):
            self._put(digest, remembered)


def _decode(stored: bytes) -> Iterator[tuple[bytes, Remembered]]:
    for digest, first_seq, records, ts in _KEY.iter_unpack(stored):
        yield digest, Remembered(first_seq, records, ts)


def drop_older(stored: bytes, ts: int) -> bytes:
    """Stored keys without those older than `ts`."""
    return b"".join([_KEY.pack(digest, *found) for digest, found in _decode(stored) if found.ts >= ts])
