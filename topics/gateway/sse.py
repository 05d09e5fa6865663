"""Frames of an event stream (API §7.5), as bytes. What all readers of a topic see alike is rendered once; only the
`id:` line in front of it differs.
"""

from collections.abc import Sequence
from functools import lru_cache

import msgspec

from topics.core.cursors import encode_map
from topics.core.diff import Buffer
from topics.core.requests import quoted
from topics.errors import TopicsError
from topics.gateway.batches import Gap
from topics.gateway.statuses import STATUS

MEDIA_TYPE = b"text/event-stream"
CONTENT_TYPE = MEDIA_TYPE + b"; charset=utf-8"
HEADERS = ((b"cache-control", b"no-store"), (b"x-accel-buffering", b"no"))
_encode = msgspec.json.Encoder().encode


def opening(retry_ms: int) -> bytes:
    return b"retry: %d\n\n" % retry_ms


def heartbeat(now_ms: int) -> bytes:
    return b": hb %d\n\n" % now_ms


def id_line(cursor: bytes) -> bytes:
    return b"id: %b\n" % cursor


@lru_cache(maxsize=64)
def single_id(pair: bytes) -> bytes:
    """The id line of a stream of one topic: all its readers ask for the same one after another."""
    return id_line(encode_map((pair,)))


def job(seq: int, text: bytes) -> bytes:
    """A job of a queue, as its worker gets it (API §10.8)."""
    if b"\n" in text or b"\r" in text:
        text = fold(text)
    return b"id: %d\nevent: job\ndata: %b\n\n" % (seq, text)


class Sse:
    """Renders what happens to a topic, without the `id:` line."""

    def record(self, topic: str, pieces: Sequence[Buffer], from_seq: int, to_seq: int, head_seq: int) -> list[bytes]:
        """As buffers: a large batch is not copied once more."""
        text = b",".join(pieces)
        if b"\n" in text or b"\r" in text:
            text = fold(text)
        return [
            b'event: record\ndata: {"topic":%b,"records":[' % quoted(topic),
            text,
            b'],"from_seq":%d,"to_seq":%d,"head_seq":%d}\n\n' % (from_seq, to_seq, head_seq),
        ]

    def tombstone(self, topic: str, gap: Gap, earliest_seq: int, head_seq: int) -> bytes:
        members = gap.members(earliest_seq, head_seq)
        return b'event: tombstone\ndata: {"topic":%b,%b}\n\n' % (quoted(topic), members)

    def caught_up(self, topic: str, head_seq: int) -> bytes:
        return b'event: caught-up\ndata: {"topic":%b,"head_seq":%d}\n\n' % (quoted(topic), head_seq)

    def topic_deleted(self, topic: str, head_seq: int) -> bytes:
        return b'event: topic-deleted\ndata: {"topic":%b,"head_seq":%d,"reason":"deleted"}\n\n' % (
            quoted(topic),
            head_seq,
        )

    def throttled(self, topic: str, wait_ms: int) -> bytes:
        return self.error(429, "watch throttled under CPU pressure", retry_after_ms=wait_ms, topics=[topic])

    def unavailable(self, topic: str, error: TopicsError) -> bytes:
        return self.error(STATUS[error.code], error.message, **error.detail | {"topics": [topic]})

    def error(self, code: int, message: str, **more: object) -> bytes:
        return b"event: error\ndata: %b\n\n" % _encode({"code": code, "error": message, **more})


RENDERER = Sse()


def fold(text: bytes) -> bytes:
    """Payloads may hold line ends between their tokens. Every line of an event needs its own `data:`."""
    return text.replace(b"\r\n", b"\n").replace(b"\r", b"\n").replace(b"\n", b"\ndata: ")
