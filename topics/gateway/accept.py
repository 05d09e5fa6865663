"""The Accept header: which of the forms that we have does the client like best?"""

from collections.abc import Iterator


def preferred(accept: bytes, *ours: bytes) -> bytes:
    """One of `ours`: the one with the greatest weight; then the one that is named most exactly, then first.

    The first of ours if the header is missing, or names none of them: an answer in a form that was not asked for is of
    more use than none.
    """
    best, chosen = (0.0, 0, 0), ours[0]
    for kind in ours:
        rank = _rank(accept, kind)
        if rank > best and rank[0] > 0:
            best, chosen = rank, kind
    return chosen


def accepts(accept: bytes, kind: bytes) -> bool:
    return _rank(accept, kind)[0] > 0


def _rank(accept: bytes, kind: bytes) -> tuple[float, int, int]:
    """Weight, exactness and (negative) place of the entry that decides about a media type."""
    ranges = {kind: 3, kind.partition(b"/")[0] + b"/*": 2, b"*/*": 1}
    decides = (0, 0, 0.0)
    for place, (named, weight) in enumerate(_entries(accept)):
        if ranges.get(named, 0) > decides[0]:
            decides = (ranges[named], -place, weight)
    exactness, place, weight = decides
    return weight, exactness, place


def _entries(accept: bytes) -> Iterator[tuple[bytes, float]]:
    for entry in accept.lower().split(b","):
        named, *parameters = (part.strip() for part in entry.split(b";"))
        weight = 1.0
        for parameter in parameters:
            name, _, value = parameter.partition(b"=")
            if name.strip() == b"q":
                weight = _weight(value.strip())
        yield named, weight


def _weight(text: bytes) -> float:
    """From 0 to 1; what is no such number counts as 0."""
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if 0 <= value <= 1 else 0.0
