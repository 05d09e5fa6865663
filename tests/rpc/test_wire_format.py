"""Golden frames between two processes: each kind, in tests/golden_rpc, u32 length and the frame.

Processes of one server are of one version; but a change here that nobody meant would meet one that was started before
an upgrade, and HELLO must stay as it is in every version. Written anew like the files of
tests/shards/test_formats.py, with TOPICS_REGENERATE_GOLDEN=1.
"""

import os
from pathlib import Path
from typing import Any

import msgpack
import pytest

from topics.errors import TopicsError
from topics.rpc import wire
from topics.rpc.failures import decode_error, encode_error
from topics.rpc.outbox import Outbox
from topics.rpc.wire import CALL, CANCEL, CHUNK, CREDIT, ERROR, HELLO, ITEM, REPLY, Decoder, pack_head

GOLDEN = Path(__file__).resolve().parents[1] / "golden_rpc" / "frames"
REGENERATE = os.environ.get("TOPICS_REGENERATE_GOLDEN") == "1"
REFUSED = TopicsError("topic_not_found", 'there is no topic "é"', {"topic": "é", "retry_after_ms": 2**40})
BODY = bytes(range(40))  # longer than two chunks of 16
MESSAGES: list[tuple[int, int, Any, bytes]] = [
    (CALL, 1, ["append", 30_000, 0, {"topic": "é", "n": 2**63}], b'{"records":[]}'),
    (CALL, 2, ["follow", None, 64, {}], b""),
    (CALL, 2**64 - 1, ["append", 5, 0, {}], BODY),
    (REPLY, 1, {"first_seq": 41, "deduped": False, "none": None}, b"\x00\xff"),
    (ITEM, 2, {"cursors": {"a": [40, 3]}}, b"item"),
    (CREDIT, 2, 16, b""),
    (CANCEL, 2, None, b""),
]


@pytest.fixture(autouse=True)
def small_chunks(set_limits):
    set_limits(RPC_CHUNK_BYTES=16, RPC_JOIN_BYTES=8)


def stream_of(kind: int, call_id: int, head: Any, body: bytes) -> bytes:
    """As a connection sends it."""
    outbox, sent = Outbox(), b""
    outbox.put(kind, call_id, pack_head(head) if head is not None else b"", body)
    while not outbox.empty:
        sent += b"".join(outbox.take())
        outbox.sent()
    return sent


def frames() -> list[bytes]:
    """As they are sent now."""
    found = [wire.hello()]
    sent = b"".join(stream_of(*message) for message in MESSAGES)
    sent += wire.encode(ERROR, 1, encode_error(REFUSED, "append"))
    while sent:
        size = 17 + int.from_bytes(sent[1:5], "little") + min(16, int.from_bytes(sent[5:9], "little"))
        found.append(sent[:size])
        sent = sent[size:]
    return found


def golden() -> list[bytes]:
    data, found = GOLDEN.read_bytes(), []
    while data:
        size = 4 + int.from_bytes(data[:4], "little")
        found.append(data[4:size])
        data = data[size:]
    return found


def test_the_bytes_are_the_golden_ones():
    now = frames()
    if REGENERATE:
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_bytes(b"".join(len(frame).to_bytes(4, "little") + frame for frame in now))
    assert now == golden(), "what processes say to one another changed: see topics/rpc/wire.py"


def test_every_kind_is_there():
    assert {frame[0] for frame in golden()} == set(range(HELLO, CHUNK + 1))


def test_the_golden_frames_are_read():
    decoder = Decoder()
    hello, *read = decoder.feed(b"".join(golden()))
    assert decoder.error is None
    assert hello == (HELLO, 0, {"version": wire.VERSION}, b"")
    *plain, (kind, call_id, head, _) = read
    assert sorted(plain, key=lambda message: message[:2]) == sorted(MESSAGES, key=lambda message: message[:2])
    assert (kind, call_id) == (ERROR, 1)
    error = decode_error(head)
    assert (error.code, error.message, error.detail) == (REFUSED.code, REFUSED.message, REFUSED.detail)


def test_the_table():
    """The one of topics/rpc/wire.py, with nothing but msgpack."""
    found = []
    for frame in golden():
        head_len, body_len = int.from_bytes(frame[1:5], "little"), int.from_bytes(frame[5:9], "little")
        head = msgpack.unpackb(frame[17 : 17 + head_len]) if head_len else None
        found.append((frame[0], int.from_bytes(frame[9:17], "little"), head, body_len, frame[17 + head_len :]))
    large = [frame for frame in found if frame[1] == 2**64 - 1]
    assert large == [
        (2, 2**64 - 1, ["append", 5, 0, {}], 40, BODY[:16]),
        (8, 2**64 - 1, None, 16, BODY[16:32]),
        (8, 2**64 - 1, None, 8, BODY[32:]),
    ]
    error = {"code": REFUSED.code, "message": REFUSED.message, "detail": dict(REFUSED.detail)}
    assert [frame for frame in found if frame not in large] == [
        (1, 0, {"version": 1}, 0, b""),
        *[(kind, call_id, head, len(body), body) for kind, call_id, head, body in MESSAGES if body is not BODY],
        (4, 1, error, 0, b""),
    ]
