"""The bytes between two processes: frames, and the decoder that puts messages together again. No I/O.

A frame is a fixed header, a msgpack head, and raw body bytes (bodies never pass through msgpack). All numbers are
little-endian.

| off | size | field |
|---|---|---|
| 0 | 1 | kind |
| 1 | 4 | head_len, at most RPC_HEAD_MAX |
| 5 | 4 | body_len: of the whole message's body, at most RPC_BODY_MAX; in a CHUNK of this piece |
| 9 | 8 | call id, chosen by the client, never reused on a connection |
| 17 | head_len | head |
| … | min(body_len, RPC_CHUNK_BYTES) | the first bytes of the body |

| kind | sent by | head | meaning |
|---|---|---|---|
| 1 HELLO | both, first | map with `version` | this layout and kind stay the same in every version |
| 2 CALL | client | [method, deadline_ms or nil, credits, map] | open a call; credits 0 asks for a single reply |
| 3 REPLY | server | map | the last message of a call |
| 4 ERROR | server | map `code`, `message`, `detail` | the last message of a call |
| 5 ITEM | server | map | one message of a stream; costs one credit |
| 6 CREDIT | client | int | that many more ITEMs are welcome |
| 7 CANCEL | client | none | nobody waits for this call any more, and what is missing of its body will not come |
| 8 CHUNK | both | none | the next piece of an unfinished body: RPC_CHUNK_BYTES, the last one what remains |

Frames of different calls may interleave; those of one call keep their order. Validity is checked before anything
is allocated: unfinished bodies together announce at most RPC_PARTIAL_BYTES, and every CHUNK but the last is full, so
neither their bytes nor their number can run away. Pieces of a body nobody waits for are skipped. The body of a large
CALL is handed on in its pieces: to put 64 MiB together takes tens of milliseconds, which a loop does not have.
"""

from collections.abc import Container, Iterable, Sequence
from struct import Struct
from typing import Any

import msgspec

from topics import limits
from topics.rpc.errors import BodyTooLarge, HeadTooLarge, ProtocolError

VERSION = 1

HELLO, CALL, REPLY, ERROR, ITEM, CREDIT, CANCEL, CHUNK = range(1, 9)
KIND_LAST = CHUNK

HEADER = Struct("<BIIQ")
HEADER_BYTES = HEADER.size

Buffer = bytes | bytearray | memoryview
Body = Buffer | Sequence[Buffer]
Message = tuple[int, int, Any, Any]  # kind, call id, head, body: bytes, or a list of them if it is a large CALL

_pack = msgspec.msgpack.Encoder().encode  # both take half the time of the msgpack package's, for heads like ours
_unpack = msgspec.msgpack.Decoder().decode
_CHUNK_BYTES = limits.RPC_CHUNK_BYTES


def pack_head(head: object) -> bytes:
    packed = _pack(head)
    if len(packed) > limits.RPC_HEAD_MAX:
        raise HeadTooLarge(f"head of {len(packed)} bytes; at most {limits.RPC_HEAD_MAX} are allowed")
    return packed


def unpack_head(packed: bytes) -> Any:
    return _unpack(packed)


def pieces_of(body: Body) -> tuple[list[memoryview], int]:
    """The body as byte views, without copying, and its size."""
    buffers: Iterable[Buffer] = [body] if isinstance(body, bytes | bytearray | memoryview) else body
    views = [view for view in (memoryview(buffer).cast("B") for buffer in buffers) if view.nbytes]
    total = sum(view.nbytes for view in views)
    if total > limits.RPC_BODY_MAX:
        raise BodyTooLarge(f"body of {total} bytes; at most {limits.RPC_BODY_MAX} are allowed")
    return views, total


def encode(kind: int, call_id: int, head: bytes = b"", body: bytes = b"") -> bytes:
    """A whole message as one frame; only for bodies that need no chunking."""
    return HEADER.pack(kind, len(head), len(body), call_id) + head + body


def hello() -> bytes:
    return encode(HELLO, 0, pack_head({"version": VERSION}))


class _Unfinished:
    """A body of which pieces are missing."""

    __slots__ = ("head", "kind", "missing", "parts", "total")

    def __init__(self, kind: int, head: Any, total: int, first: bytes) -> None:
        self.kind = kind
        self.head = head
        self.total = total
        self.missing = total - len(first)
        self.parts = [first]


class Decoder:
    """Bytes in, whole messages out, however the bytes were cut.

    `error` is set at the first invalid frame. Messages before it are still returned, so that what a reader sees does
    not depend on how the bytes arrived; nothing after it is looked at.
    """

    def __init__(self, wanted: Container[int] | None = None) -> None:
        self.error: ProtocolError | None = None
        self.unfinished_bytes = 0
        self._wanted = wanted  # call ids whose long bodies are worth collecting; None means all
        self._unfinished: dict[int, _Unfinished] = {}
        self._buffer = bytearray()  # holds a frame that is not complete yet; used again and again
        self._have = 0  # bytes of that frame
        self._need = HEADER_BYTES

    def feed(self, data: bytes) -> list[Message]:
        messages: list[Message] = []
        while self._have and data and self.error is None:
            count = min(len(data), self._need - self._have)
            self._buffer[self._have : self._have + count] = data[:count]
            data = data[count:]
            messages += self.filled(count)
        if data and self.error is None:
            self._take(data, messages)
        return messages

    @property
    def missing(self) -> int:
        """Bytes of the frame that is under way, if its header is known."""
        return self._need - self._have if self._have else 0

    def room(self) -> memoryview | None:
        """Where the rest of a large frame that is under way belongs: it can be received right there, see `filled`."""
        missing = self._need - self._have
        if not self._have or missing < limits.RPC_READ_BYTES // 2 or self.error is not None:
            return None
        return memoryview(self._buffer)[self._have : self._need]

    def filled(self, count: int) -> list[Message]:
        """So many bytes were put into `room`."""
        self._have += count
        messages: list[Message] = []
        if self._have >= self._need:
            size, self._have = self._have, 0
            with memoryview(self._buffer) as view:
                self._take(view[:size], messages)
        return messages

    def _take(self, data: bytes | memoryview, messages: list[Message]) -> None:
        """Decode what is complete, keep the rest."""
        try:
            rest = self._decode(data, messages)
        except ProtocolError as error:
            self.error = error
            return
        if rest < len(data):
            self._have = len(data) - rest
            kept = bytes(data[rest:])
            if len(self._buffer) < self._need:
                self._buffer = bytearray(self._need)
            self._buffer[: self._have] = kept

    def forget(self, call_id: int) -> None:
        """The rest of this call's body is not wanted or will not come."""
        unfinished = self._unfinished.pop(call_id, None)
        if unfinished is not None:
            self.unfinished_bytes -= unfinished.total

    def _decode(self, data: bytes | memoryview, messages: list[Message]) -> int:
        """Decode all complete frames; the position of the first incomplete one."""
        position, end = 0, len(data)
        header, unpack, append = HEADER.unpack_from, _unpack, messages.append
        head_max, body_max = limits.RPC_HEAD_MAX, limits.RPC_BODY_MAX
        while True:
            start = position + HEADER_BYTES
            if start > end:
                self._need = HEADER_BYTES
                return position
            kind, head_len, body_len, call_id = header(data, position)
            if not 0 < kind <= KIND_LAST or head_len > head_max or body_len > body_max:
                raise ProtocolError(f"invalid frame: kind {kind}, head {head_len} bytes, body {body_len} bytes")
            cut = start + head_len
            stop = cut + (body_len if body_len <= _CHUNK_BYTES else _CHUNK_BYTES)
            if stop > end:
                self._need = stop - position
                return position
            position = stop
            head: Any = None
            if head_len:
                try:
                    head = unpack(data[start:cut])
                except Exception as error:  # whatever the bytes provoke
                    raise ProtocolError(f"head of frame kind {kind} is not valid msgpack") from error
            if kind >= CANCEL or body_len > _CHUNK_BYTES or self._unfinished:
                self._step(kind, call_id, head, body_len, bytes(data[cut:stop]), messages)
            else:
                append((kind, call_id, head, bytes(data[cut:stop])))

    def _step(self, kind: int, call_id: int, head: Any, size: int, piece: bytes, messages: list[Message]) -> None:
        """A frame that has to do with unfinished bodies."""
        if kind == CHUNK:
            self._continue(call_id, head, size, piece, messages)
        elif kind == CANCEL:
            self.forget(call_id)
            messages.append((kind, call_id, None, b""))
        elif kind == CREDIT:
            messages.append((kind, call_id, head, piece))
        elif call_id in self._unfinished:
            raise ProtocolError(f"call {call_id} sent a message inside an unfinished body")
        elif size > _CHUNK_BYTES:
            self._begin(kind, call_id, head, size, piece)
        else:
            messages.append((kind, call_id, head, piece))

    def _begin(self, kind: int, call_id: int, head: Any, size: int, piece: bytes) -> None:
        if self._wanted is not None and call_id not in self._wanted:
            return  # its chunks will be skipped too
        if self.unfinished_bytes + size > limits.RPC_PARTIAL_BYTES:
            raise ProtocolError(f"unfinished bodies of more than {limits.RPC_PARTIAL_BYTES} bytes")
        self.unfinished_bytes += size
        self._unfinished[call_id] = _Unfinished(kind, head, size, piece)

    def _continue(self, call_id: int, head: Any, size: int, piece: bytes, messages: list[Message]) -> None:
        if head is not None or not 0 < size <= _CHUNK_BYTES:
            raise ProtocolError(f"invalid chunk of {size} bytes")
        unfinished = self._unfinished.get(call_id)
        if unfinished is None:
            return
        if size != min(unfinished.missing, _CHUNK_BYTES):
            raise ProtocolError(f"chunk of {size} bytes where {unfinished.missing} are missing")
        unfinished.missing -= size
        unfinished.parts.append(piece)
        if not unfinished.missing:
            self.forget(call_id)
            large = unfinished.kind == CALL and unfinished.total > limits.BODY_JOIN_BYTES
            body = unfinished.parts if large else b"".join(unfinished.parts)
            messages.append((unfinished.kind, call_id, unfinished.head, body))
