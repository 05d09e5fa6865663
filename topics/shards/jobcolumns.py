"""The last part of an index file: priorities and times of records, so that a start does not read their blocks.

Per block, in the order of the blocks: with entry flag 2 its n priorities, a byte each; with flag 4 a u16 k, then the k
times before which its records must not be claimed; with flag 8 as with 4 the times from which on they are gone
(core/extras.py). Blocks without any, and that is most, take no room.
"""

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from topics.core.block import Block
from topics.core.chunk import Chunk
from topics.core.extras import TIME_BYTES, BadExtras, Extras, Times

RANKED, TIMED, EXPIRING = 2, 4, 8  # flags of an entry; 1 is taken for tags
_U16 = struct.Struct("<H")
_NO_EXTRAS = Extras()


class JobColumns(NamedTuple):
    """Of one block."""

    ranks: bytes | None = None
    dues: Times | None = None
    expiries: Times | None = None

    def fits(self, block: Block) -> bool:
        """Whether the block says the same."""
        extras = block.extras if block.extras is not None else _NO_EXTRAS
        return self == (bytes(block.priorities) if extras.ranked else None, extras.dues, extras.expiries)


NOTHING = JobColumns()


def flags_of(block: Block) -> int:
    extras = block.extras
    if extras is None:
        return 0
    flags = RANKED if extras.ranked else 0
    return flags | (TIMED if extras.dues is not None else 0) | (EXPIRING if extras.expiries is not None else 0)


def encode(blocks: Iterable[Block]) -> bytes:
    parts: list[bytes] = []
    for block in blocks:
        if block.extras is None:
            continue
        if block.extras.ranked:
            parts.append(bytes(block.priorities))
        for times in (block.extras.dues, block.extras.expiries):
            if times is not None:
                parts += [_U16.pack(len(times.at)), times.encode()]
    return b"".join(parts)


def decode(data: bytes, entries: Sequence[tuple[int, int, int]]) -> dict[int, JobColumns]:
    """By the offset of the block. `entries` are offset, number of records, flags. Raises BadExtras."""
    columns, at = {}, 0
    for offset, n, flags in entries:
        ranks = dues = expiries = None
        if flags & RANKED:
            ranks = data[at : at + n]
            at += n
            if len(ranks) != n:
                raise BadExtras("priorities are cut off")
        if flags & TIMED:
            dues, at = _decode_times(data, at, n)
        if flags & EXPIRING:
            expiries, at = _decode_times(data, at, n)
        if flags & (RANKED | TIMED | EXPIRING):
            columns[offset] = JobColumns(ranks, dues, expiries)
    if at != len(data):
        raise BadExtras("the columns of jobs do not add up")
    return columns


def _decode_times(data: bytes, at: int, n: int) -> tuple[Times, int]:
    """The times that begin at `at`, and where they end."""
    if len(data) - at < _U16.size:
        raise BadExtras("times are cut off")
    (count,) = _U16.unpack_from(data, at)
    end = at + _U16.size + TIME_BYTES * count
    return Times.decode(data[at + _U16.size : end], n), end


def hang(chunk: Chunk, columns: JobColumns | None) -> None:
    if columns is not None:
        chunk.ranks, chunk.dues, chunk.expiries = columns
