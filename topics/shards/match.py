"""A match being resolved to the seqs of its records: from memory, from segment indexes, from packed blocks.

What is needed is taken when the plan is made, in the loop; `resolve` reads files, so it runs in a thread, beside
checkpoints. A pack may be rewritten and removed meanwhile: its open handle is part of the plan. A segment is never
rewritten, only removed when none of its records is live: its index is opened when its turn comes, and one that is
not there any more has nothing to delete. So any number of segments takes one file handle at a time.
"""

import logging
from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import pairwise
from typing import NamedTuple

from topics import limits
from topics.core.block import BadBlock, Block
from topics.core.chunk import Chunk, DataFile
from topics.core.ranges import SeqRanges
from topics.core.tags import Pattern, TagGeneration
from topics.shards import datafile
from topics.shards.cold import NOT_SET, ColdTier, ColdUnavailable, refusal
from topics.shards.files import File, Files

log = logging.getLogger(__name__)


class Packed(NamedTuple):
    """A block in a pack, where it was when the plan was made."""

    chunk: Chunk
    offset: int
    length: int
    file: DataFile
    handle: File


def _merged(parts: list[list[int]]) -> Iterator[int]:
    """All of them, ascending. Not with one sort: the interpreter is held while half a million seqs are sorted or freed.

    As a rule one part follows another. Some records may be in two: they stand twice.
    """
    parts.sort(reverse=True)
    if any(lower[-1] > upper[0] for upper, lower in pairwise(parts)):
        yield from merge(*parts)
        return
    while parts:
        yield from parts.pop()


class MatchPlan:
    def __init__(
        self,
        files: Files,
        pattern: Pattern,
        bound: int,
        resident: list[int],
        generations: list[TagGeneration],
        cold: ColdTier | None = None,
    ) -> None:
        self._files = files
        self._cold = cold
        self._pattern = pattern
        self._bound = bound  # matches from here on stay
        self._resident = resident  # matches in the part of the resident index that still grows
        self._generations = generations  # the other parts
        self.segments: list[DataFile] = []
        self.packed: list[Packed] = []
        self.damaged: list[Chunk] = []  # whose blocks `resolve` could not read

    @property
    def takes_long(self) -> bool:
        """Whether it is to be resolved in a thread: it reads files, or may hit many records."""
        if self.segments or self.packed:
            return True
        hits = len(self._resident) + sum(generation.at_most(self._pattern) for generation in self._generations)
        return hits > limits.INLINE_DELETES

    def resolve(self) -> SeqRanges:
        """The seqs that match; some may be dead. Records in `damaged` chunks are not among them."""
        parts = [self._sorted(self._resident)]
        parts += [self._sorted(generation.find(self._pattern)) for generation in self._generations]
        parts += [self._sorted(self._find_in_segment(info)) for info in self.segments]
        parts += [self._sorted(self._find_in_pack(packed)) for packed in self.packed]
        return SeqRanges.from_ascending(_merged([part for part in parts if part]))

    def _sorted(self, seqs: Iterable[int]) -> list[int]:
        return sorted([seq for seq in seqs if seq < self._bound])

    def _find_in_segment(self, info: DataFile) -> list[int]:
        try:
            file = self._files.open(datafile.index_path(info.path))
        except FileNotFoundError:
            return []
        try:
            return datafile.find_tags(file, info, self._pattern)
        except datafile.BadFile as error:
            log.warning("the index of %s cannot be used (%s); its blocks are searched", info.path, error)
        finally:
            file.close()
        return self._search_segment(info)

    def _search_segment(self, info: DataFile) -> list[int]:
        """Without its index: block by block. The next start makes a new index."""
        try:
            data = self._read_whole(info)
        except FileNotFoundError:
            return []
        except ColdUnavailable as error:
            raise refusal(str(error)) from error
        return [seq for _, block, _ in datafile.read_frames(data, info) for seq in self._find_in(block)]

    def _read_whole(self, info: DataFile) -> bytes:
        if info.cold:
            if self._cold is None:
                raise ColdUnavailable(NOT_SET)
            return self._cold.read_whole(info)
        file = self._files.open(info.path)
        try:
            return file.read_at(0, file.size())
        finally:
            file.close()

    def _find_in_pack(self, packed: Packed) -> list[int]:
        try:
            block = datafile.decode_tags(packed.handle.read_at(packed.offset, packed.length), packed.file.seed)
        except BadBlock:
            self.damaged.append(packed.chunk)
            return []
        return list(self._find_in(block))

    def _find_in(self, block: Block) -> Iterator[int]:
        for index in range(len(block)):
            if (tag := block.tag(index)) and self._pattern.matches(tag):
                yield block.first_seq + index
