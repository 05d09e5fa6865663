"""Remembered idempotency keys of one topic: key → the seqs its write was given.

Keys are kept as 128-bit BLAKE2 digests, so a key costs the same whatever its length and nobody can make two collide.
A key is forgotten only when its window has passed; the shard refuses new keys at its bound instead of dropping one.
"""

from collections import deque
from hashlib import blake2b
from typing import NamedTuple


class Remembered(NamedTuple):
    first_seq: int
    records: int
    ts: int


def digest_key(key: str) -> bytes:
    return blake2b(key.encode(), digest_size=16).digest()


class KeyWindow:
    __slots__ = ("_by_key", "_order")

    def __init__(self) -> None:
        self._by_key: dict[bytes, Remembered] = {}
        self._order: deque[tuple[int, bytes]] = deque()

    def __len__(self) -> int:
        return len(self._by_key)

    def find(self, digest: bytes, now_ms: int, window_ms: int) -> Remembered | None:
        found = self._by_key.get(digest)
        if found is None or now_ms - found.ts > window_ms:
            return None
        return found

    def add(self, digest: bytes, remembered: Remembered) -> None:
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

    def items(self) -> list[tuple[bytes, int, int, int]]:
        return [(digest, found.first_seq, found.records, found.ts) for digest, found in self._by_key.items()]
