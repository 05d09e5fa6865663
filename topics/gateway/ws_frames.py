"""What a WebSocket carries (API §7.7): commands as they come in, frames as they go out."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from topics import errors, limits
from topics.core.diff import Buffer
from topics.core.groups import Where
from topics.core.requests import decode_body, quoted
from topics.core.watching import Start
from topics.errors import TopicsError, invalid
from topics.gateway.batches import Gap
from topics.limits import Limits

_NO_RAW = msgspec.Raw(b"")
RequestId = str | int | None


class Head(msgspec.Struct, frozen=True):
    """What every command has."""

    op: str
    request_id: RequestId = None


class Command(msgspec.Struct, frozen=True):
    """What a command says beside its head."""

    @property
    def names(self) -> tuple[str, ...]:
        """The topics it is about."""
        return ()


class TopicCommand(Command, frozen=True):
    topic: str

    @property
    def names(self) -> tuple[str, ...]:
        return (self.topic,)


class Subscribe(Command, frozen=True, rename={"from_": "from"}):
    topic: str | None = None
    from_seq: int | UnsetType = UNSET
    from_ts: int | UnsetType = UNSET
    tail: bool = False
    topics: dict[str, Start | None] | None = None
    node: str | list[str] | None = None
    limit: int = 0
    max_batch_bytes: int = limits.WATCH_BATCH_BYTES_DEFAULT
    include_meta: bool | UnsetType = UNSET  # as include_data
    include_tags: bool = False
    include_data: bool = True
    credits: int | None = None
    group: str | None = None
    consumer: str | None = None
    take_over: bool = False
    from_: Where | UnsetType = UNSET

    @property
    def names(self) -> tuple[str, ...]:
        return (self.topic,) if self.topic is not None else tuple(self.topics or ())

    def starts(self) -> dict[str, Start | None]:
        if (self.topic is None) == (self.topics is None):
            raise invalid("subscribe names one topic, or several in topics", field="topic")
        if self.topic is not None:
            return {self.topic: Start(self.from_seq, self.from_ts, self.tail)}
        return self.topics or {}


class Unsubscribe(TopicCommand, frozen=True):
    pass


class Credit(TopicCommand, frozen=True, forbid_unknown_fields=True):
    n: int
    op: Literal["credit"] = "credit"
    request_id: RequestId = None


class Ack(TopicCommand, frozen=True, forbid_unknown_fields=True):
    """A group moves what others rely on: fields that are not known are refused, as in the HTTP call."""

    seq: int
    group: str | None = None
    consumer: str | None = None
    op: Literal["ack"] = "ack"
    request_id: RequestId = None


class Publish(TopicCommand, frozen=True):
    """The fields of an append's body are passed on as they came."""

    records: msgspec.Raw = _NO_RAW
    return_seqs: bool | None = True
    node: msgspec.Raw = _NO_RAW
    idempotency_key: msgspec.Raw = _NO_RAW
    create: msgspec.Raw = _NO_RAW
    config: msgspec.Raw = _NO_RAW
    disable_backpressure: msgspec.Raw = _NO_RAW

    @property
    def configures(self) -> bool:
        return self.config is not _NO_RAW and bytes(self.config) != b"null"

    def body(self) -> bytes:
        """The body of the append that this is."""
        fields = ("records", "node", "idempotency_key", "create", "config", "disable_backpressure")
        given = ((name, getattr(self, name)) for name in fields)
        return b"{%b}" % b",".join([b'"%b":%b' % (name.encode(), raw) for name, raw in given if raw is not _NO_RAW])


_head = msgspec.json.Decoder(Head)
_commands: dict[str, msgspec.json.Decoder[Any]] = {
    "subscribe": msgspec.json.Decoder(Subscribe),
    "unsubscribe": msgspec.json.Decoder(Unsubscribe),
    "credit": msgspec.json.Decoder(Credit),
    "ack": msgspec.json.Decoder(Ack),
    "publish": msgspec.json.Decoder(Publish),
    "ping": msgspec.json.Decoder(Command),
}
_encode = msgspec.json.Encoder().encode


def decode(message: bytes, bounds: Limits) -> tuple[Head, Any]:
    """What is asked for, and the command itself."""
    head: Head = decode_body(_head, message, bounds)
    if head.op not in _commands:
        raise invalid(f"op must be one of {', '.join(_commands)}", field="op")
    return head, decode_body(_commands[head.op], message, bounds)


def _opened(op: str, request_id: RequestId) -> bytes:
    if request_id is None:
        return b'{"op":"%b"' % op.encode()
    return b'{"op":"%b","request_id":%b' % (op.encode(), _encode(request_id))


def ack(request_id: RequestId, fragment: bytes, performance: bytes) -> bytes:
    """An append's answer, which is still open, as a frame."""
    return b"%b,%b%b" % (_opened("ack", request_id), fragment[1:], performance)


def subscribed(request_id: RequestId, topics: Mapping[str, Mapping[str, Any]]) -> bytes:
    return b'%b,"topics":%b}' % (_opened("subscribed", request_id), _encode(topics))


def unsubscribed(request_id: RequestId, topic: str) -> bytes:
    return b'%b,"topic":%b}' % (_opened("unsubscribed", request_id), quoted(topic))


def credited(request_id: RequestId, topic: str, credits: int) -> bytes:
    return b'%b,"topic":%b,"credits":%d}' % (_opened("credited", request_id), quoted(topic), credits)


def acked(request_id: RequestId, fragment: bytes, performance: bytes) -> bytes:
    """The answer to a group's ack, which is still open, as a frame."""
    return b"%b,%b%b" % (_opened("acked", request_id), fragment[1:], performance)


def ended(topic: str, group: str, status: int, reason: TopicsError) -> bytes:
    """A group's subscription is over, without anybody having asked for that."""
    fields = {"op": "error", "topic": topic, "group": group, "status": status}
    return _encode(fields | {"code": reason.code, "message": reason.message, "detail": reason.detail})


def pong(request_id: RequestId) -> bytes:
    return _opened("pong", request_id) + b"}"


def error(request_id: RequestId, refusal: TopicsError) -> bytes:
    fields: dict[str, Any] = {"code": refusal.code, "message": refusal.message}
    if refusal.detail:
        fields["detail"] = refusal.detail
    return b"%b,%b" % (_opened("error", request_id), _encode(fields)[1:])


class WsRenderer:
    """What happens to a topic, as frames."""

    def record(self, topic: str, pieces: Sequence[Buffer], from_seq: int, to_seq: int, head_seq: int) -> list[bytes]:
        return [
            b'{"op":"record","topic":%b,"from_seq":%d,"to_seq":%d,"head_seq":%d,"records":['
            % (quoted(topic), from_seq, to_seq, head_seq),
            b",".join(pieces),
            b"]}",
        ]

    def tombstone(self, topic: str, gap: Gap, earliest_seq: int, head_seq: int) -> bytes:
        return b'{"op":"tombstone","topic":%b,%b}' % (quoted(topic), gap.members(earliest_seq, head_seq))

    def caught_up(self, topic: str, head_seq: int) -> bytes:
        return b'{"op":"caught_up","topic":%b,"head_seq":%d}' % (quoted(topic), head_seq)

    def throttled(self, topic: str, wait_ms: int) -> bytes:
        detail = {"retry_after_ms": wait_ms, "topics": [topic]}
        return error(None, TopicsError(errors.THROTTLED, "watch throttled under CPU pressure", detail))

    def unavailable(self, topic: str, refusal: TopicsError) -> bytes:
        return error(None, TopicsError(refusal.code, refusal.message, refusal.detail | {"topics": [topic]}))

    def topic_deleted(self, topic: str, head_seq: int) -> bytes:
        return b'{"op":"topic_deleted","topic":%b,"head_seq":%d,"reason":"deleted"}' % (quoted(topic), head_seq)


RENDERER = WsRenderer()
