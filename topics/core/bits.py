"""Masks of records: bit i stands for record i of a block."""

from collections.abc import Iterable, Iterator


def runs(mask: int) -> Iterator[tuple[int, int]]:
    """Runs [low, high) of set bits, ascending. Costs as much as there are runs, not bits."""
    low = 0
    while mask:
        zeros = (mask & -mask).bit_length() - 1
        mask >>= zeros
        ones = (~mask & (mask + 1)).bit_length() - 1
        mask >>= ones
        low += zeros
        yield low, low + ones
        low += ones


_FROM_DIGITS = bytes.maketrans(b"01", b"\0\1")
_TO_DIGITS = bytes.maketrans(b"\0\1", b"01")


def spread(mask: int) -> bytes:
    """A byte for each bit, 0 or 1, the lowest first, as far as bits are set."""
    return bin(mask)[:1:-1].encode().translate(_FROM_DIGITS)


def gather(flags: Iterable[bool]) -> int:
    """The mask of the flags that are set, the first is the lowest bit. There is at least one flag."""
    return int(bytes(flags)[::-1].translate(_TO_DIGITS), 2)


def span(low: int, high: int) -> int:
    """The mask of [low, high)."""
    return (1 << high) - (1 << low)
