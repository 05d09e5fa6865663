"""Counts with a cap, over all gateways of an instance: requests under way and open streams, by key and in all.

They stand on the board (topics/board.py), each gateway's in its own slot. Whoever takes one gives it back in a
`finally`; of a gateway that is killed, the supervisor clears the slot. A cap of 0 is off; without keys there is nobody
to count by, and only the cap on all streams applies.
"""

from topics import errors
from topics.board import Board, KeyCells, Slot
from topics.errors import TopicsError
from topics.settings import Caps

RETRY_AFTER_MS = 1000


def throttled(limit: str, most: int, what: str) -> TopicsError:
    detail = {"limit": limit, "max": most, "retry_after_ms": RETRY_AFTER_MS}
    return TopicsError(errors.THROTTLED, f"{what} ({limit} is {most}); retry", detail)


class RequestSlots:
    """Requests under way of each key; never more than the cap.

    A request counts itself first and looks then. Far from the cap that is enough: another gateway has at most one
    request between these two steps. Close to it the look is repeated under the board's lock, where the count is exact.
    """

    def __init__(self, board: Board | None = None, gateway: int = 0, most: int = 0) -> None:
        self._board = board
        self._most = most
        keys = board.key_count if board is not None and most else 0
        self._cells = [KeyCells(board, gateway, key, "key_requests") for key in range(keys) if board is not None]
        self._easy = most - board.gateway_count if board is not None else 0

    def take(self, key: int) -> bool:
        """Whether there is something to give back. Raises `throttled`, and then nothing was counted."""
        if not self._cells:
            return False
        cells = self._cells[key]
        cells.add(1)
        if cells.total() > self._easy:
            self._look_closely(cells)
        return True

    def _look_closely(self, cells: KeyCells) -> None:
        assert self._board is not None
        try:
            with self._board.locked():
                if cells.total() <= self._most:
                    return
                cells.add(-1)
        except TopicsError:  # the lock was not to be had
            cells.add(-1)
            raise
        raise throttled("max_inflight_per_key", self._most, "this API key has too many requests under way")

    def give_back(self, key: int) -> None:
        self._cells[key].add(-1)


class StreamSlot:
    """An open stream's place; `close` gives it back, once."""

    __slots__ = ("_cells", "_slot")

    def __init__(self, slot: Slot | None, cells: KeyCells | None) -> None:
        self._slot = slot
        self._cells = cells

    def __enter__(self) -> "StreamSlot":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._slot is not None:
            self._slot.add("streams", -1)
        if self._cells is not None:
            self._cells.add(-1)
        self._slot = self._cells = None


class StreamSlots:
    """Open streams (SSE and WebSocket), in all and of each key. `with slots.take(principal.index): …`."""

    def __init__(self, board: Board | None = None, gateway: int = 0, caps: Caps | None = None) -> None:
        self._board = board
        self._gateway = gateway
        self._caps = caps or Caps()

    def take(self, key: int) -> StreamSlot:
        """`key` is the index of whom the stream counts for, -1 without keys. Raises `throttled`; exact."""
        board, caps = self._board, self._caps
        if board is None:
            return StreamSlot(None, None)
        slot = board.gateway(self._gateway)
        cells = KeyCells(board, self._gateway, key, "key_streams") if key >= 0 else None
        with board.locked():
            if caps.sse_connections and board.total("streams") >= caps.sse_connections:
                raise throttled("max_sse_connections", caps.sse_connections, "the server has too many open streams")
            if cells is not None and 0 < caps.sse_connections_per_key <= cells.total():
                most = caps.sse_connections_per_key
                raise throttled("max_sse_connections_per_key", most, "this API key has too many open streams")
            slot.add("streams", 1)
            if cells is not None:
                cells.add(1)
        return StreamSlot(slot, cells)
