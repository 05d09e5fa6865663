"""What the RPC itself can refuse or lose.

Each is a `TopicsError`, so the gateway needs no second table; the classes let a caller tell "the peer is gone" from
"the peer said no".
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from topics.errors import INTERNAL, NOT_READY, PAYLOAD_TOO_LARGE, THROTTLED, TopicsError


class RpcError(TopicsError):
    """An error of the transport between two processes, not of the method that was called."""

    rpc_code: ClassVar[str] = INTERNAL

    def __init__(self, message: str, detail: Mapping[str, Any] | None = None) -> None:
        super().__init__(self.rpc_code, message, detail)

    def again(self) -> Self:
        """A fresh copy: one loss fails many callers, and each needs a traceback of its own."""
        copy = type(self)(self.message, self.detail)
        copy.__cause__ = self.__cause__
        return copy


class PeerLost(RpcError):
    """The connection is gone. Whether an open call took effect at the other side is unknown."""

    rpc_code = NOT_READY


class ProtocolError(PeerLost):
    """The peer sent something that is not our protocol; the connection was closed."""


class VersionMismatch(ProtocolError):
    """The peer speaks another version of the protocol."""


class DeadlineExceeded(RpcError):
    """The caller's deadline passed first. Whether the call took effect is unknown."""

    rpc_code = NOT_READY


class TooManyCalls(RpcError):
    """The connection already carries as many open calls as it may."""

    rpc_code = THROTTLED


class SendQueueFull(RpcError):
    """The peer has not been reading; the message was never queued."""

    rpc_code = THROTTLED


class HeadTooLarge(RpcError):
    rpc_code = PAYLOAD_TOO_LARGE


class BodyTooLarge(RpcError):
    rpc_code = PAYLOAD_TOO_LARGE


class CallCancelled(RpcError):
    """Raised at the serving side: the caller no longer waits for this call."""
