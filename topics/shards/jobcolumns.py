"""The last part of an index file: priorities and times of jobs, so that a start does not read their blocks.

Per block, in the order of the blocks: with entry flag 2 its n priorities, a byte each; with flag 4 a u16 k, then the
k times of its records (core/extras.py). Blocks without either, and that is most, take no room.
"""

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from topics.core.block import Block
from topics.core.chunk import Chunk
from topics.core.extras import BadExtras, Dues

RANKED, TIMED = 2, 4  # flags of an entry; 1 is taken for tags
_U16 = struct.Struct("<H")
_DUE_BYTES = 10


class JobColumns(NamedTuple):
    """Of one block."""

    ranks: bytes | None
    dues: Dues | None

    def fits(self, block: Block) -> bool:
        """Whether the block says the same."""
        extras = block.extras
        ranked = extras is not None and extras.ranked
        return self.ranks == (bytes(block.priorities) if ranked else None) and self.dues == (
            extras.dues if extras is not None else None
        )


NOTHING = JobColumns(None, None)


def flags_of(block: Block) -> int:
    extras = block.extras
    if extras is None:
        return 0
    return (RANKED if extras.ranked else 0) | (TIMED if extras.dues is not None else 0)


def encode(blocks: Iterable[Block]) -> bytes:
    parts: list[bytes] = []
    for block in blocks:
        if block.extras is None:
            continue
        if block.extras.ranked:
            parts.append(bytes(block.priorities))
        if block.extras.dues is not None:
            parts += [_U16.pack(len(block.extras.dues.at)), block.extras.dues.encode()]
    return b"".join(parts)


def decode(data: bytes, entries: Sequence[tuple[int, int, int]]) -> dict[int, JobColumns]:
    """By the offset of the block. `entries` are offset, number of records, flags. Raises BadExtras."""
    columns, at = {}, 0
    for offset, n, flags in entries:
        ranks = dues = None
        if flags & RANKED:
            ranks = data[at : at + n]
            at += n
            if len(ranks) != n:
                raise BadExtras("priorities are cut off")
        if flags & TIMED:
            if len(data) - at < _U16.size:
                raise BadExtras("times are cut off")
            (count,) = _U16.unpack_from(data, at)
            end = at + _U16.size + _DUE_BYTES * count
            dues = Dues.decode(data[at + _U16.size : end], n)
            at = end
        if ranks is not None or dues is not None:
            columns[offset] = JobColumns(ranks, dues)
    if at != len(data):
        raise BadExtras("the columns of jobs do not add up")
    return columns


def hang(chunk: Chunk, columns: JobColumns | None) -> None:
    if columns is not None:
        chunk.ranks, chunk.dues = columns
