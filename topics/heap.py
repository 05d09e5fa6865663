"""How glibc manages memory for a process. Another C library does as it always does."""

import contextlib
import ctypes

from topics import limits

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8


def share_one_heap() -> None:
    """Keep glibc from giving every thread a heap of its own: blocks made in one and freed in another would pile up.

    Measured over 3 million appends in large batches: 212 MiB resident instead of 292.
    """
    _set(M_ARENA_MAX, 1)


def keep_large_buffers() -> None:
    """Keep glibc from giving the memory of a large buffer back to the kernel whenever it is freed: to get it again,
    page by page, takes longer than to fill it, and nobody else is served meanwhile.

    Measured with an answer of 8 MiB that is joined from its parts: 1 ms instead of 8 to 10.
    """
    _set(M_MMAP_THRESHOLD, limits.HEAP_LARGE_BYTES)
    _set(M_TRIM_THRESHOLD, limits.HEAP_FREE_BYTES)


def _set(option: int, value: int) -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(option, value)
