"""Digests of keys and what is remembered of each, as a dict that never takes long to grow.

One dict of a million keys stands still for 50 ms when it grows. So from SPREAD_AT keys on there are many small ones.
A key's place follows from the beginning of its digest. Places are of unequal width, from one to nearly two, so that
each has grown to the next size at another time.
"""

from collections.abc import Iterable

PLACES = 256
SPREAD_AT = 4096  # keys; moving them takes about a millisecond
_BEGINNINGS = 1 << 16  # of digests: two bytes

Spread = dict[int, dict[bytes, bytes]]  # what is to be put, by place


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
    """Another thread may `get` while the loop changes it: it finds a key that stays, and none that is not there."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: list[dict[bytes, bytes]] = [{}]

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def get(self, digest: bytes) -> bytes | None:
        parts = self._parts
        return parts[_PLACE_OF[digest[0] << 8 | digest[1]] if len(parts) > 1 else 0].get(digest)

    def put(self, digest: bytes, value: bytes) -> bytes | None:
        """What it takes the place of."""
        parts = self._parts
        part = parts[_PLACE_OF[digest[0] << 8 | digest[1]] if len(parts) > 1 else 0]
        before = part.get(digest)
        part[digest] = value
        if len(part) > SPREAD_AT and len(parts) == 1:
            self._spread()
        return before

    def put_all(self, many: Spread) -> None:
        if len(self._parts) == 1 and len(self._parts[0]) + sum(map(len, many.values())) > SPREAD_AT:
            self._spread()
        parts = self._parts
        for place, added in many.items():
            parts[place if len(parts) > 1 else 0].update(added)

    def discard(self, digest: bytes, value: bytes) -> bool:
        """Unless something else has taken its place. Whether much memory was given back with it."""
        parts = self._parts
        place = _PLACE_OF[digest[0] << 8 | digest[1]] if len(parts) > 1 else 0
        part = parts[place]
        if part.get(digest) is value:
            del part[digest]
            if not part:
                parts[place] = {}  # an empty dict keeps the room it had
                return True
        return False

    def _spread(self) -> None:
        (whole,) = self._parts
        made = spread(whole, whole.values())
        self._parts = [made.get(place) or {} for place in range(PLACES)]
