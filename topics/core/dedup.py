"""Records that say which one they are (`dedup_key`): of those with the same key one is appended, the others are told
its seq.

A key is remembered for the idempotency window of its topic, in the same memory as idempotency keys (idempotency.py) and
in the log frame of its record: a crash keeps both or neither. A write is sifted before its seqs are given out, so
what is appended has seqs without gaps as ever.
"""

from typing import NamedTuple

import msgspec

from topics.core.idempotency import KeyWindow, Remembered
from topics.core.requests import Append

Duplicates = tuple[tuple[int, int], ...]  # (index in the request, the seq it maps to)


class Told(tuple[tuple[int, int], ...]):
    """Duplicates, very many of them, with what an answer says about them made ahead."""

    text: bytes

    @classmethod
    def ahead(cls, duplicates: Duplicates) -> Duplicates:
        if not duplicates:
            return duplicates
        made = cls(duplicates)
        made.text = tell(duplicates)
        return made


def tell(duplicates: Duplicates) -> bytes:
    """As JSON."""
    if isinstance(duplicates, Told):
        return duplicates.text
    return b"[%b]" % b",".join([b'{"index":%d,"seq":%d}' % one for one in duplicates])


class Sifted(NamedTuple):
    """What is left of a write without its duplicates, and those."""

    request: Append
    duplicates: Duplicates = ()


def sift(request: Append, keys: KeyWindow | None, first_seq: int, now_ms: int, window_ms: int) -> Sifted:
    """Leave out what is there already or stands in the request twice. The rest gets seqs from `first_seq` on."""
    seqs: dict[bytes, int] = {}
    kept: list[tuple[int, bytes]] = []
    dropped: list[tuple[int, int]] = []
    for index, digest in request.dedups:
        seq = seqs.get(digest)
        if seq is None:
            found = keys.find(digest, now_ms, window_ms) if keys is not None else None
            if found is None:
                kept.append((index - len(dropped), digest))
                seqs[digest] = first_seq + kept[-1][0]
                continue
            seqs[digest] = seq = found.first_seq
        dropped.append((index, seq))
    if not dropped:
        return Sifted(request)
    gone = {index for index, _ in dropped}
    records = [record for index, record in enumerate(request.records) if index not in gone]
    return Sifted(msgspec.structs.replace(request, records=records, dedups=tuple(kept)), tuple(dropped))


def retell(request: Append, first: Remembered, keys: KeyWindow, now_ms: int, window_ms: int) -> Duplicates:
    """The duplicates of a write that is sent again, as far as their keys are still remembered.

    Those it appended itself are as long as its own key, because they came with it.
    """
    own: set[bytes] = set()
    told: list[tuple[int, int]] = []
    for index, digest in request.dedups:
        found = keys.find(digest, now_ms, window_ms)
        if found is None:
            continue
        if digest not in own and first.first_seq <= found.first_seq < first.first_seq + first.records:
            own.add(digest)
        else:
            told.append((index, found.first_seq))
    return tuple(told)
