"""What some records have beside their text: when they may first be claimed, when their own time is over, and whose
copies they are.

A block that has nothing of the kind has no `Extras` at all. In its bytes they are the typed extensions at the end of
the side part, each u8 type, u32 length, then:

    1 not before   k times u16 index of the record, then k times u64 unix ms; by index
    2 origin       k times u16 index of the record and 16 bytes; by index
    3 expires      as 1

The origin of a record that the server itself copied is a digest of where it was: a copy that may have been made before
a crash is found by it. Readers never see it.
"""

import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence

NOT_BEFORE, ORIGIN, EXPIRES = 1, 2, 3
ORIGIN_BYTES = 16
_HEAD = struct.Struct("<BI")
_ORIGIN = struct.Struct("<H16s")
TIME_BYTES = 10


class BadExtras(ValueError):
    """These bytes are not extensions of this version."""


class Times:
    """A time for some records of one block; by index, ascending. Ten bytes each."""

    __slots__ = ("_bounds", "_mask", "_masked", "at", "when")

    def __init__(self, at: "array[int] | None" = None, when: "array[int] | None" = None) -> None:
        self.at = array("H") if at is None else at
        self.when = array("Q") if when is None else when
        self._mask = self._masked = 0
        self._bounds = (0, 0, 0)  # of so many: the earliest, the latest

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Times) and self.at == other.at and self.when == other.when

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(zip(self.at, self.when, strict=True))

    def add(self, index: int, when: int) -> None:
        self.at.append(index)
        self.when.append(when)

    def get(self, index: int) -> int:
        """0 if the record has none."""
        place = bisect_left(self.at, index)
        return self.when[place] if place < len(self.at) and self.at[place] == index else 0

    @property
    def bounds(self) -> tuple[int, int]:
        """The earliest and the latest; there is at least one. Worked out once, wherever that is."""
        if self._bounds[0] != len(self.when):
            self._bounds = len(self.when), min(self.when), max(self.when)
        return self._bounds[1:]

    def without(self, dead: int) -> "Times":
        """Without those of these records, a bit for each."""
        if not dead:
            return self
        left = [pair for pair in self if not dead >> pair[0] & 1]
        return Times(array("H", [index for index, _ in left]), array("Q", [when for _, when in left]))

    def seqs(self, first_seq: int) -> Sequence[int]:
        """Of the records that have one, in a block that begins with this seq."""
        at = self.at
        if at and at[-1] - at[0] < len(at):  # neighbours
            return range(first_seq + at[0], first_seq + at[-1] + 1)
        return [first_seq + index for index in at]

    @property
    def mask(self) -> int:
        """A bit for every record that has one."""
        for place in range(self._masked, len(self.at)):
            self._mask |= 1 << self.at[place]
        self._masked = len(self.at)
        return self._mask

    def encode(self) -> bytes:
        return self.at.tobytes() + self.when.tobytes()

    @classmethod
    def decode(cls, data: bytes, n: int) -> "Times":
        """Of a block of `n` records. Raises BadExtras."""
        count, rest = divmod(len(data), TIME_BYTES)
        if not count or rest:
            raise BadExtras("the times of a block are cut off")
        at, when = array("H", data[: 2 * count]), array("Q", data[2 * count :])
        if at[-1] >= n or sorted(set(at)) != at.tolist():
            raise BadExtras("the times of a block do not fit its records")
        return cls(at, when)


class Extras:
    __slots__ = ("dues", "expiries", "origins", "ranked")

    def __init__(self) -> None:
        self.ranked = False  # some priority is not 0; the block has a column of them anyhow
        self.dues: Times | None = None  # before which records must not be claimed
        self.expiries: Times | None = None  # from which on they are gone
        self.origins: dict[int, bytes] = {}

    def __bool__(self) -> bool:
        return self.has_terms or self.expiries is not None or bool(self.origins)

    @property
    def has_terms(self) -> bool:
        """Whether a queue has to know, because its jobs are not all alike."""
        return self.ranked or self.dues is not None

    def due(self, index: int, when: int) -> None:
        """To be called in the order of the records."""
        if self.dues is None:
            self.dues = Times()
        self.dues.add(index, when)

    def expire(self, index: int, when: int) -> None:
        """To be called in the order of the records."""
        if self.expiries is None:
            self.expiries = Times()
        self.expiries.add(index, when)

    def take(self, other: "Extras", low: int, high: int, shift: int) -> None:
        """Take over what the records [low, high) of another block have; the first of them is `shift` here."""
        for index, when in other.dues or ():
            if low <= index < high:
                self.due(shift + index - low, when)
        for index, when in other.expiries or ():
            if low <= index < high:
                self.expire(shift + index - low, when)
        for index, origin in other.origins.items():
            if low <= index < high:
                self.origins[shift + index - low] = origin

    def encode(self) -> bytes:
        """The typed extensions; empty if there are none."""
        parts = []
        if self.dues is not None:
            data = self.dues.encode()
            parts += [_HEAD.pack(NOT_BEFORE, len(data)), data]
        if self.origins:
            data = b"".join(_ORIGIN.pack(index, origin) for index, origin in self.origins.items())
            parts += [_HEAD.pack(ORIGIN, len(data)), data]
        if self.expiries is not None:
            data = self.expiries.encode()
            parts += [_HEAD.pack(EXPIRES, len(data)), data]
        return b"".join(parts)

    def decode(self, data: bytes, n: int) -> None:
        """Take over the extensions of a block of `n` records. Raises BadExtras."""
        if not data:
            raise BadExtras("there is no extension")
        at = 0
        while at < len(data):
            if len(data) - at < _HEAD.size:
                raise BadExtras("an extension is cut off")
            kind, length = _HEAD.unpack_from(data, at)
            at += _HEAD.size
            part = data[at : at + length]
            at += length
            if len(part) != length:
                raise BadExtras("an extension is cut off")
            if kind == NOT_BEFORE:
                self.dues = Times.decode(part, n)
            elif kind == EXPIRES:
                self.expiries = Times.decode(part, n)
            elif kind == ORIGIN and not length % _ORIGIN.size:
                self.origins = dict(_ORIGIN.iter_unpack(part))
            else:
                raise BadExtras(f"extension {kind} is not known")
