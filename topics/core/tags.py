"""The tag index of records that are not in a segment yet: tag → seqs, exact by lookup, prefix by range scan.

Tags are kept in their quoted JSON form, which is what blocks hold. Quoting works character by character, so the
quoted prefix (without its closing quote) is a byte prefix of exactly the quoted tags it matches.

The index is kept in generations, so that it can be forgotten in pieces: one ends after GENERATION_RECORDS, or when a
checkpoint captures its records. It goes when they have reached files, where a sorted run takes its place, or when the
log begins above them. So it never holds much more than the records that are in memory alone.
"""

from collections.abc import Iterator
from typing import Any

from sortedcontainers import SortedDict

from topics.core.block import Block
from topics.core.match import TagMatch
from topics.core.requests import quoted

GENERATION_RECORDS = 4096


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

    __slots__ = ("_seqs", "records")

    def __init__(self) -> None:
        self._seqs: dict[bytes, list[int]] = {}
        self.records = 0

    def add(self, block: Block) -> None:
        seqs = self._seqs
        start = 0
        tags = bytes(block.tags)
        for seq, end in enumerate(block.tag_ends, block.first_seq):
            if end != start:
                tag = tags[start:end]
                found = seqs.get(tag)
                if found is None:
                    seqs[tag] = [seq]
                else:
                    found.append(seq)
                self.records += 1
                start = end

    def at_most(self, pattern: Pattern) -> int:
        """No more than so many records match."""
        return len(self._seqs.get(pattern.exact, ())) if pattern.exact else self.records

    def scan(self, pattern: Pattern) -> Iterator[int]:
        """As `find`, in a generation that may still grow: it is small, and stays a plain dict."""
        if pattern.exact:
            yield from self._seqs.get(pattern.exact, ())
            return
        for tag, seqs in self._seqs.items():
            if tag.startswith(pattern.prefix):
                yield from seqs

    def find(self, pattern: Pattern) -> Iterator[int]:
        """In a generation that has ended. Any thread may ask."""
        if pattern.exact:
            yield from self._seqs.get(pattern.exact, ())
            return
        if not isinstance(self._seqs, SortedDict):
            self._seqs = SortedDict(self._seqs)
        ordered: Any = self._seqs
        for tag in ordered.irange(minimum=pattern.prefix):
            if not tag.startswith(pattern.prefix):
                return
            yield from self._seqs[tag]

    def __len__(self) -> int:
        return len(self._seqs)
