"""Keys in the order they came: runs of them, which are stored and forgotten together, and the forms they have on disk.

Stored form, 36 bytes a key: digest, first_seq u64, records u32, ts u64. In the log frame of an append, 20 bytes for
each dedup key: index of the record u32, digest.
"""

import struct
from bisect import bisect_left
from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

from topics.core.keytable import Spread, spread

RUN_KEYS = 1024  # in one run at most: all of it is let go of in one step
_KEY = struct.Struct("<16sQIQ")
_STAMP = struct.Struct("<28xQ")  # of a stored key
_VALUE = struct.Struct("<QIQ")
_DEDUP = struct.Struct("<I16s")
_FIRST_SEQ = struct.Struct("<Q")
DEDUP_BYTES = _DEDUP.size

Dedups = tuple[tuple[int, bytes], ...]  # (index of the record, digest of its dedup_key)

pack_value = _VALUE.pack
unpack_value = _VALUE.unpack


class BadKeys(ValueError):
    """Stored keys that are cut off."""


class Run:
    """Some keys, oldest first. All but the open one of a window stay as they are, so that a thread may store them."""

    __slots__ = ("digests", "gone", "stamps", "swept", "values")

    def __init__(self, digests: list[bytes], values: list[bytes], stamps: list[int]) -> None:
        self.digests = digests
        self.values = values  # what is remembered of each, as it is stored
        self.stamps = stamps  # its ts
        self.gone = 0  # so many at the front are forgotten
        self.swept = 0  # and so many of those are out of the table

    def __len__(self) -> int:
        return len(self.digests)

    def cut(self, below_seq: int) -> "tuple[Run | None, Run | None]":
        """Those of lower seqs, and the others."""
        at = bisect_left(self.values, below_seq, key=_first_seq)
        if not at or at == len(self):
            return (self, None) if at else (None, self)
        lower = Run(self.digests[:at], self.values[:at], self.stamps[:at])
        return lower, Run(self.digests[at:], self.values[at:], self.stamps[at:])

    def encode(self) -> bytes:
        return b"".join(chain.from_iterable(zip(self.digests, self.values, strict=True)))


def _first_seq(value: bytes) -> int:
    seq: int = _FIRST_SEQ.unpack_from(value)[0]
    return seq


class NewKeys(NamedTuple):
    """The dedup keys of a large write, made ready in a thread to be logged and remembered."""

    packed: bytes
    runs: list[Run]
    spread: Spread
    digests: frozenset[bytes]


def prepare(dedups: Dedups, first_seq: int, ts: int) -> NewKeys:
    """Of records that get seqs from `first_seq` on."""
    digests = [digest for _, digest in dedups]
    values = [pack_value(first_seq + index, 1, ts) for index, _ in dedups]
    runs = []
    for at in range(0, len(digests), RUN_KEYS):
        some = digests[at : at + RUN_KEYS]
        runs.append(Run(some, values[at : at + RUN_KEYS], [ts] * len(some)))
    return NewKeys(pack_dedups(dedups), runs, spread(digests, values), frozenset(digests))


def pack_dedups(dedups: Dedups) -> bytes:
    return b"".join([_DEDUP.pack(*one) for one in dedups])


def unpack_dedups(stored: memoryview) -> Dedups:
    return tuple(_DEDUP.iter_unpack(stored))


def decode(stored: bytes | memoryview) -> list[tuple[bytes, bytes, int]]:
    """(digest, value, ts) of stored keys, oldest first. Raises BadKeys."""
    if len(stored) % _KEY.size:
        raise BadKeys(f"{len(stored)} bytes are no whole number of keys")
    found = [(digest, pack_value(*value), value[2]) for digest, *value in _KEY.iter_unpack(stored)]
    found.sort(key=lambda key: key[2])  # nearly always they are
    return found


def drop_older(stored: bytes | bytearray, ts: int) -> Iterator[bytes]:
    """Stored keys without those older than `ts`, in pieces."""
    view = memoryview(stored)
    for at in range(0, len(view), RUN_KEYS * _KEY.size):
        piece = view[at : at + RUN_KEYS * _KEY.size]
        kept = [n for n, (stamp,) in enumerate(_STAMP.iter_unpack(piece)) if stamp >= ts]
        if len(kept) * _KEY.size == len(piece):
            yield bytes(piece)
        elif kept:
            yield b"".join([piece[n * _KEY.size : (n + 1) * _KEY.size] for n in kept])
