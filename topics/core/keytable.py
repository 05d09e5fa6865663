"""Digests of keys and what is remembered of each, as a dict that never takes long to grow.

One dict of a million keys stands still for 50 ms when it grows. So from SPREAD_AT keys on there are many small ones.
A key's place follows from the beginning of its digest. Places are of unequal width, from one to nearly two, so that
each has grown to the next size at another time.
"""

from collections.abc import Iterable

PLACES = 256
SPREAD_AT = 4096  # keys; moving them takes about a millisecond
_BEGINNINGS = 1 << 16  # of digests: two bytes

LOTS_MAX = 16  # that wait to be merged; nobody writes more before somebody has come by

Spread = dict[int, dict[bytes, bytes]]  # what is to be put, by place
_NOTHING: dict[bytes, bytes] = {}


def _lay_out() -> bytes:
    ends = [round(_BEGINNINGS * (2 ** (n / PLACES) - 1)) for n in range(PLACES + 1)]
    return b"".join([bytes([n]) * (ends[n + 1] - ends[n]) for n in range(PLACES)])


_PLACE_OF = _lay_out()


def spread(digests: Iterable[bytes], values: Iterable[bytes]) -> Spread:
    """Make many ready to be put. Each digest once."""
    made: Spread = {}
    for digest, value in zip(digests, values, strict=True):
        place = _PLACE_OF[digest[0] << 8 | digest[1]]
        if place in made:
            made[place][digest] = value
        else:
            made[place] = {digest: value}
    return made


class KeyTable:
    """Another thread may `get` while the loop changes it: it finds a key that stays, and none that is not there.

    Keys that come in a large lot stay in that at first, where they are found as well; `merge` takes them over, a few at
    a time."""

    __slots__ = ("_lots", "_parts")

    def __init__(self) -> None:
        self._parts: list[dict[bytes, bytes]] = [{}]
        self._lots: tuple[Spread, ...] = ()  # the newest first; what is in one stands for what older ones have

    def __len__(self) -> int:
        """One that came again after it was forgotten may count twice."""
        return sum(map(len, self._parts)) + sum([len(part) for lot in self._lots for part in lot.values()])

    def get(self, digest: bytes) -> bytes | None:
        place = _PLACE_OF[digest[0] << 8 | digest[1]]
        for lot in self._lots:
            value = lot.get(place, _NOTHING).get(digest)
            if value is not None:
                return value
        parts = self._parts
        return parts[place if len(parts) > 1 else 0].get(digest)

    def put(self, digest: bytes, value: bytes) -> bytes | None:
        """What it takes the place of."""
        before, parts = self.get(digest), self._parts
        place = _PLACE_OF[digest[0] << 8 | digest[1]]
        part = parts[place if len(parts) > 1 else 0]
        part[digest] = value
        for lot in self._lots:
            lot.get(place, _NOTHING).pop(digest, None)
        if len(part) > SPREAD_AT and len(parts) == 1:
            self._spread()
        return before

    def put_all(self, many: Spread) -> None:
        """It is the table's from now on."""
        if len(self._lots) >= LOTS_MAX:
            while self._merge_place(self._lots[-1]):
                pass
        self._lots = many, *self._lots

    @property
    def has_lots(self) -> bool:
        return bool(self._lots)

    def merge(self, keys: int) -> int:
        """Take over about so many that came in lots; how many are left to do of them."""
        while self._lots and keys > 0:
            keys -= self._merge_place(self._lots[-1]) or 1
        return max(0, keys)

    def _merge_place(self, oldest: Spread) -> int:
        """One place of it; how many keys that were. 0 if it was the last, and the lot is gone."""
        parts = self._parts
        if len(parts) == 1 and len(parts[0]) + sum(map(len, oldest.values())) > SPREAD_AT:
            self._spread()
            return len(parts[0]) + 1
        for place, added in oldest.items():
            parts[place if len(parts) > 1 else 0].update(added)  # first: at no time it is nowhere
            del oldest[place]
            return len(added) + 1
        self._lots = self._lots[:-1]
        return 0

    def discard(self, digest: bytes, value: bytes) -> bool:
        """Unless something else has taken its place. Whether much memory was given back with it."""
        parts = self._parts
        place = _PLACE_OF[digest[0] << 8 | digest[1]]
        for lot in self._lots:
            if lot.get(place, _NOTHING).get(digest) is value:
                del lot[place][digest]
                return False
        at = place if len(parts) > 1 else 0
        part = parts[at]
        if part.get(digest) is value:
            del part[digest]
            if not part:
                parts[at] = {}  # an empty dict keeps the room it had
                return True
        return False

    def _spread(self) -> None:
        (whole,) = self._parts
        made = spread(whole, whole.values())
        self._parts = [made.get(place) or {} for place in range(PLACES)]
