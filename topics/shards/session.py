"""One watch session: its owner, how far it has been delivered, and the stream that is on it now.

Its forms in the book of sessions, both msgpack arrays:

    d:<wid>   created_ms, owner, cursors at creation, definition (opaque bytes)
    c:<wid>   clean, cursors, as a stop found them

Cursors are a map of topic to [seq, epoch]. The definition is never in memory, it is read back when a stream begins.
"""

import msgspec
import trio

from topics.rpc.calls import Call
from topics.shards.book import decode_entry
from topics.shards.heads import Cursors

DEFINITION, SAVED = "d:", "c:"
_cursors = msgspec.msgpack.Decoder(Cursors)
_encode = msgspec.msgpack.Encoder().encode


class Definition(msgspec.Struct, frozen=True, array_like=True):
    created_ms: int
    owner: str
    cursors: Cursors
    definition: bytes


class Saved(msgspec.Struct, frozen=True, array_like=True):
    clean: bool
    cursors: Cursors


class Session:
    __slots__ = (
        "_live", "_resting", "call", "clean", "created_ms", "last_access_ms", "leaving", "left", "owner", "started",
        "stream", "unsaved", "wid",
    )  # fmt: skip

    def __init__(self, wid: str, owner: str, created_ms: int, cursors: Cursors) -> None:
        self.wid = wid
        self.owner = owner
        self.created_ms = created_ms
        self.last_access_ms = created_ms
        self.clean = True  # the last stream told its final cursors, or there was none
        self.unsaved = False  # memory knows more than the book
        self.stream = ""  # that is on it now, or about to begin; empty: none
        self.call: Call | None = None  # its
        self.started = False  # it has been told where to begin
        self.leaving = ""  # a stream that was taken over from and may still tell its final cursors
        self.left: trio.Event | None = None  # it has
        self._live: Cursors | None = None  # while there is a stream
        self._resting = _encode(cursors)  # while there is none: a tenth of the memory

    @property
    def cursors(self) -> Cursors:
        return self._live if self._live is not None else _cursors.decode(self._resting)

    @cursors.setter
    def cursors(self, cursors: Cursors) -> None:
        if self._live is not None:
            self._live = cursors
        else:
            self._resting = _encode(cursors)

    def occupy(self, stream: str, call: Call) -> None:
        """A stream is to begin; whoever was there is told to go."""
        if self.call is not None:
            self.call.reply({"reason": "taken_over"})
            if self.started and stream != self.stream:
                self.leaving, self.left = self.stream, trio.Event()
        self._live = self.cursors
        self.stream, self.call, self.started = stream, call, False

    def start(self) -> None:
        """The stream knows where to begin. From now on only its own word tells how far it came."""
        self.started = self.unsaved = True
        self.clean = False
        self.leaving = ""

    def vacate(self, now_ms: int) -> None:
        """The stream is gone."""
        cursors, self._live = self.cursors, None
        self.cursors = cursors
        self.stream, self.call, self.started = "", None, False
        self.last_access_ms = now_ms

    def conclude(self, cursors: Cursors, exact: bool) -> None:
        """The stream that began last came this far, or (not `exact`) perhaps a little further."""
        self.cursors = cursors
        self.clean = exact

    def definition(self, definition: bytes) -> bytes:
        """The entry of the book that makes the session."""
        return _encode(Definition(self.created_ms, self.owner, self.cursors, definition))

    def saved(self) -> bytes:
        return _encode(Saved(self.clean, self.cursors))


def decode_definition(entry: bytes) -> Definition:
    """Raises BadEntry."""
    return decode_entry(entry, Definition)


def decode_saved(entry: bytes) -> Saved:
    """Raises BadEntry."""
    return decode_entry(entry, Saved)
