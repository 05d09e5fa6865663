"""RPC between the processes of one instance, over Unix sockets.

    wire.py        frames and their decoder, no I/O          outbox.py      the send queue, no I/O
    link.py        reader, writer, deadlines of either end   transport.py   buffers onto a stream
    connection.py  the calling end                           open_calls.py  what a caller waits with
    server.py      the serving end                           calls.py       what a handler answers
    unix.py        sockets                                   peer.py        a peer that may come and go
    local.py       a peer in the same process
    errors.py      what the RPC refuses or loses             failures.py    errors as they travel

A connection has a calling and a serving end. Two processes that call each other have one connection each way; this is
what makes its backpressure free of deadlocks.
"""

from topics.rpc.calls import Call, Handler
from topics.rpc.connection import Connection, connect
from topics.rpc.errors import (
    BodyTooLarge,
    CallCancelled,
    DeadlineExceeded,
    HeadTooLarge,
    PeerLost,
    ProtocolError,
    RpcError,
    SendQueueFull,
    TooManyCalls,
    VersionMismatch,
)
from topics.rpc.local import LocalPeer
from topics.rpc.open_calls import Reply, Stream
from topics.rpc.peer import Peer
from topics.rpc.server import serve
from topics.rpc.unix import connect_unix, serve_unix
from topics.rpc.wire import Body, Buffer

__all__ = [
    "Peer",
    "LocalPeer",
    "Connection",
    "Reply",
    "Stream",
    "connect",
    "connect_unix",
    "Call",
    "Handler",
    "serve",
    "serve_unix",
    "Body",
    "Buffer",
    "RpcError",
    "PeerLost",
    "ProtocolError",
    "VersionMismatch",
    "DeadlineExceeded",
    "TooManyCalls",
    "SendQueueFull",
    "HeadTooLarge",
    "BodyTooLarge",
    "CallCancelled",
]
