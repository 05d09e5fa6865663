"""The tag index of records that are not in a segment yet: tag → seqs, exact by lookup, prefix by range scan.

Tags are kept in their quoted JSON form, which is what blocks hold. Quoting works character by character, so the
quoted prefix (without its closing quote) is a byte prefix of exactly the quoted tags it matches.

The index is kept in generations, so that it can be forgotten in pieces: one ends after GENERATION_RECORDS, or when a
checkpoint captures its records. It goes when they have reached files, where a sorted run takes its place, or when the
log begins above them. So it never holds much more than the records that are in memory alone.

Most of it is never asked for anything. The tags of a block of many records are therefore kept as they came, until
somebody asks.
"""

from array import array
from collections.abc import Iterator
from typing import Any

from sortedcontainers import SortedDict

from topics.core.block import Block
from topics.core.match import TagMatch
from topics.core.requests import quoted

GENERATION_RECORDS = 4096
LATER_RECORDS = 4  # a block of so many records is indexed when somebody asks

Index = dict[bytes, list[int]]
Tags = tuple[int, bytes, "array[int]"]  # of a block: its first seq, its tags, where each ends


class Pattern:
    """A tag predicate over quoted tags."""

    __slots__ = ("exact", "prefix")

    def __init__(self, match: TagMatch) -> None:
        self.exact = quoted(match.value) if match.op == "Eq" else b""
        self.prefix = b"" if self.exact else quoted(match.value)[:-1]

    def matches(self, tag: bytes) -> bool:
        return tag == self.exact if self.exact else tag.startswith(self.prefix)


class TagGeneration:
    """Tags of one stretch of the log. A plain dict until, after its end, the first prefix query asks for order."""

    __slots__ = ("_parts", "records")

    def __init__(self) -> None:
        self._parts: tuple[Index, list[Tags]] = ({}, [])  # the index, and what is not in it yet; changed together
        self.records = 0  # with a tag, or a few more

    def add(self, block: Block) -> None:
        seqs, later = self._parts
        if len(block.tag_ends) < LATER_RECORDS:
            self.records += _index(seqs, block.first_seq, bytes(block.tags), block.tag_ends)
            return
        later.append((block.first_seq, bytes(block.tags), block.tag_ends[:]))
        self.records += len(block.tag_ends)

    def at_most(self, pattern: Pattern) -> int:
        """No more than so many records match."""
        if not pattern.exact:
            return self.records
        seqs, later = self._parts
        return len(seqs.get(pattern.exact, ())) + sum([len(ends) for _, _, ends in later])

    def scan(self, pattern: Pattern) -> Iterator[int]:
        """As `find`, in a generation that may still grow: it is small, and stays a plain dict."""
        seqs = self._whole()
        if pattern.exact:
            yield from seqs.get(pattern.exact, ())
            return
        for tag, found in seqs.items():
            if tag.startswith(pattern.prefix):
                yield from found

    def find(self, pattern: Pattern) -> Iterator[int]:
        """In a generation that has ended. Any thread may ask."""
        seqs = self._whole()
        if pattern.exact:
            yield from seqs.get(pattern.exact, ())
            return
        if not isinstance(seqs, SortedDict):
            seqs = SortedDict(seqs)
            self._parts = seqs, []
        ordered: Any = seqs
        for tag in ordered.irange(minimum=pattern.prefix):
            if not tag.startswith(pattern.prefix):
                return
            yield from seqs[tag]

    def _whole(self) -> Index:
        """The index with everything in it. Two threads that ask at the same time make the same one."""
        seqs, later = self._parts
        if later:
            seqs = {tag: found[:] for tag, found in seqs.items()}
            for block in later:
                _index(seqs, *block)
            self._parts = seqs, []
        return seqs

    def __len__(self) -> int:
        return len(self._whole())


def _index(seqs: Index, first_seq: int, tags: bytes, ends: "array[int]") -> int:
    """Enter the tags of a block; how many there are."""
    start = count = 0
    for seq, end in enumerate(ends, first_seq):
        if end != start:
            tag = tags[start:end]
            found = seqs.get(tag)
            if found is None:
                seqs[tag] = [seq]
            else:
                found.append(seq)
            count += 1
            start = end
    return count
