"""Sets of seqs as sorted, disjoint, inclusive ranges: which records of a topic are deleted, lost or acknowledged.

Firsts and lasts stand in two parallel arrays of unsigned 64-bit integers, 16 bytes a range, so a million contiguous
seqs cost one range and a million scattered ones 16 MB. Ranges never touch: two that would are one.

Encoded form, all numbers as LEB128 varints of at most 64 bits:

    range_count
    range_count x { gap, extra }

    gap    the first range: its first seq; later ones: first - previous last - 2 (ranges never touch)
    extra  last - first

The form is canonical: equal sets have equal bytes, and `decode` refuses any other bytes.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

from topics.core.bits import runs

SEQ_MAX = 2**64 - 1
FILL_STEP = 4096  # ranges that go into the arrays at once: longer ones would hold the interpreter


class SeqRanges:
    """A growing set of seqs. Adding past the end is O(1); elsewhere a binary search and a memmove."""

    __slots__ = ("_count", "_firsts", "_lasts")

    def __init__(self) -> None:
        self._firsts = array("Q")
        self._lasts = array("Q")
        self._count = 0

    @classmethod
    def from_ascending(cls, seqs: Iterable[int]) -> "SeqRanges":
        """Built from seqs in ascending order; a repeated seq counts once. ValueError if one goes back."""
        ranges = cls()
        if isinstance(seqs, range) and seqs.step == 1:
            if seqs:
                ranges.add(seqs[0], seqs[-1])
            return ranges
        ascending = iter(seqs)
        last = next(ascending, None)
        if last is None:
            return ranges
        firsts = [last]
        lasts: list[int] = []
        for seq in ascending:
            if seq == last + 1:
                last = seq
            elif seq > last:
                lasts.append(last)
                if len(lasts) == FILL_STEP:
                    ranges._fill(firsts, lasts)
                    firsts, lasts = [], []
                firsts.append(seq)
                last = seq
            elif seq < last:
                raise ValueError(f"seq {seq} after {last}: not ascending")
        lasts.append(last)
        ranges._fill(firsts, lasts)
        return ranges

    @classmethod
    def from_masks(cls, masks: Iterable[tuple[int, int]]) -> "SeqRanges":
        """Of each (first seq, mask) the seqs whose bits are set, in ascending order of first seqs."""
        ranges = cls()
        firsts, lasts = ranges._firsts, ranges._lasts
        for first, mask in masks:
            for low, high in runs(mask):
                if lasts and first + low <= lasts[-1] + 1:
                    ranges.add(first + low, first + high - 1)
                else:
                    firsts.append(first + low)
                    lasts.append(first + high - 1)
                    ranges._count += high - low
        return ranges

    def _fill(self, firsts: list[int], lasts: list[int]) -> None:
        """Add ranges above all others."""
        if firsts[0] < 0 or lasts[-1] > SEQ_MAX:
            raise ValueError("a seq is an integer from 0 to 2**64 - 1")
        self._firsts.fromlist(firsts)
        self._lasts.fromlist(lasts)
        self._count += sum(lasts) - sum(firsts) + len(firsts)

    def add(self, first: int, last: int) -> None:
        """Add every seq from `first` to `last`, both included; what is there already stays."""
        if not 0 <= first <= last <= SEQ_MAX:
            raise ValueError(f"not a range of seqs: {first}..{last}")
        firsts, lasts = self._firsts, self._lasts
        # Every range in low..high-1 overlaps the new one or touches it, and becomes one with it.
        low = bisect_left(lasts, first - 1) if lasts and first <= lasts[-1] + 1 else len(lasts)
        high = bisect_right(firsts, last + 1, low)
        if low < high:
            first = min(first, firsts[low])
            last = max(last, lasts[high - 1])
            self._count -= self._count_of(low, high)
        firsts[low:high] = array("Q", (first,))
        lasts[low:high] = array("Q", (last,))
        self._count += last - first + 1

    def within(self, first: int, last: int) -> "SeqRanges":
        """What lies from `first` to `last`."""
        found = SeqRanges()
        for low, high in self:
            if low <= last and high >= first:
                found.add(max(low, first), min(high, last))
        return found

    def _count_of(self, low: int, high: int) -> int:
        return sum(self._lasts[low:high]) - sum(self._firsts[low:high]) + high - low

    def __contains__(self, seq: int) -> bool:
        index = bisect_left(self._lasts, seq)
        return index < len(self._firsts) and self._firsts[index] <= seq

    def covers(self, first: int, last: int) -> bool:
        """Whether all seqs from `first` to `last` are in it."""
        index = bisect_left(self._lasts, first)
        return index < len(self._firsts) and self._firsts[index] <= first and last <= self._lasts[index]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """The ranges in order, each as (first, last)."""
        return iter(zip(self._firsts, self._lasts, strict=True))

    def __bool__(self) -> bool:
        return bool(self._firsts)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SeqRanges):
            return NotImplemented
        return self._firsts == other._firsts and self._lasts == other._lasts

    __hash__ = None  # type: ignore[assignment]  # a set that grows is no key

    def __repr__(self) -> str:
        shown = ", ".join(f"{first}..{last}" for first, last in zip(self._firsts[:8], self._lasts[:8], strict=True))
        return f"SeqRanges({shown}{', …' if self.range_count > 8 else ''})"

    @property
    def count(self) -> int:
        """How many seqs."""
        return self._count

    @property
    def range_count(self) -> int:
        return len(self._firsts)

    @property
    def first(self) -> int | None:
        return self._firsts[0] if self._firsts else None

    @property
    def last(self) -> int | None:
        return self._lasts[-1] if self._lasts else None

    def count_between(self, first: int, last: int) -> int:
        """How many seqs from `first` to `last`, both included."""
        low = bisect_left(self._lasts, first)
        high = bisect_right(self._firsts, last)
        if low >= high or first > last:
            return 0
        before = max(first - self._firsts[low], 0)
        after = max(self._lasts[high - 1] - last, 0)
        return self._count_of(low, high) - before - after

    def index_of(self, seq: int) -> int:
        """The index of the first range that does not end below `seq`."""
        return bisect_left(self._lasts, seq)

    def first_of(self, index: int) -> int:
        return self._firsts[index]

    def bits(self, first: int, n: int, at: int = 0) -> tuple[int, int]:
        """The seqs among the n from `first` on, as a mask; and the index of the range to go on with above them.

        `at` is where to begin: no range before it ends at `first` or above.
        """
        firsts, lasts, end = self._firsts, self._lasts, first + n
        if at < len(lasts) and lasts[at] < first:
            at = bisect_left(lasts, first, at)
        mask = 0
        while at < len(firsts) and (low := firsts[at]) < end:
            high = lasts[at] + 1
            mask |= (1 << min(high, end) - first) - (1 << max(low - first, 0))
            if high > end:
                break
            at += 1
        return mask, at

    def encode(self) -> bytes:
        out = bytearray()
        _put_varint(out, len(self._firsts))
        previous = -2
        for first, last in zip(self._firsts, self._lasts, strict=True):
            gap = first - previous - 2
            extra = last - first
            if gap < 0x80 and extra < 0x80:
                out.append(gap)
                out.append(extra)
            else:
                _put_varint(out, gap)
                _put_varint(out, extra)
            previous = last
        return bytes(out)

    @classmethod
    def decode(cls, encoded: bytes) -> "SeqRanges":
        """ValueError on anything `encode` does not write. Work and memory are bounded by the length of the input."""
        values = _get_varints(encoded)
        if not values or len(values) != 1 + 2 * values[0]:
            raise ValueError("seq ranges: not as many numbers as ranges need")
        firsts: list[int] = []
        lasts: list[int] = []
        last = -2
        for gap, extra in zip(values[1::2], values[2::2], strict=True):
            first = last + 2 + gap
            last = first + extra
            firsts.append(first)
            lasts.append(last)
        if last > SEQ_MAX:
            raise ValueError("seq ranges: a seq beyond 64 bits")
        ranges = cls()
        if firsts:
            ranges._fill(firsts, lasts)
        return ranges


def _put_varint(out: bytearray, value: int) -> None:
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def _get_varints(encoded: bytes) -> list[int]:
    """Every number of the input; only the shortest form of a 64-bit value is accepted."""
    if encoded.isascii():  # no byte continues
        return list(encoded)
    values: list[int] = []
    value = shift = 0
    for byte in encoded:
        if byte >= 0x80:
            value |= (byte & 0x7F) << shift
            shift += 7
            if shift > 63:
                raise ValueError("seq ranges: a number beyond 64 bits")
        elif not shift:
            values.append(byte)
        else:
            value |= byte << shift
            if byte == 0 or value > SEQ_MAX:
                raise ValueError("seq ranges: a number not in its shortest form, or beyond 64 bits")
            values.append(value)
            value = shift = 0
    if shift:
        raise ValueError("seq ranges: cut short")
    return values
