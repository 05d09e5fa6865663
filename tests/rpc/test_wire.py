"""Framing: the same messages however the bytes are cut, and nothing but ProtocolError for garbage."""

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from topics import limits
from topics.rpc.errors import BodyTooLarge, HeadTooLarge, ProtocolError
from topics.rpc.outbox import Outbox
from topics.rpc.wire import (
    CALL,
    CANCEL,
    CHUNK,
    CREDIT,
    HEADER,
    HEADER_BYTES,
    REPLY,
    Decoder,
    encode,
    pack_head,
    pieces_of,
)

heads = st.dictionaries(st.text(max_size=5), st.none() | st.integers(-5, 2**63) | st.text(max_size=5), max_size=3)
bodies = st.binary(max_size=40) | st.integers(0, 70).map(bytes)
messages = st.lists(st.tuples(st.sampled_from([CALL, REPLY]), heads, bodies), max_size=8)
small = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200, deadline=None)


@pytest.fixture(autouse=True)
def small_limits(set_limits):
    set_limits(RPC_CHUNK_BYTES=16, RPC_JOIN_BYTES=8, RPC_HEAD_MAX=4096, RPC_BODY_MAX=100, RPC_PARTIAL_BYTES=200)


def encode_all(items):
    outbox = Outbox()
    for call_id, (kind, head, body) in enumerate(items, 1):
        outbox.put(kind, call_id, pack_head(head), body)
    wire = b""
    while not outbox.empty:
        wire += b"".join(outbox.take())
        outbox.sent()
    assert outbox.queued_bytes == 0
    return wire


def decode_all(wire, cuts):
    decoder = Decoder()
    found = []
    for start, stop in zip([0, *cuts], [*cuts, len(wire)], strict=True):
        found += decoder.feed(wire[start:stop])
    return found, decoder


def cuts_of(data, wire):
    return sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=12)))


@small
@given(messages, st.data())
def test_any_split_gives_the_same_messages(items, data):
    wire = encode_all(items)
    found, decoder = decode_all(wire, cuts_of(data, wire))
    expected = {(call_id, kind, body): head for call_id, (kind, head, body) in enumerate(items, 1)}
    assert {(call_id, kind, body): head for kind, call_id, head, body in found} == expected
    assert len(found) == len(items)
    assert decoder.error is None
    assert decoder.unfinished_bytes == 0


@small
@given(messages)
def test_byte_by_byte(items):
    wire = encode_all(items)
    assert decode_all(wire, range(1, len(wire)))[0] == decode_all(wire, [])[0]


@small
@given(messages, st.binary(max_size=60), st.data())
def test_garbage_is_an_error_that_does_not_depend_on_the_split(items, garbage, data):
    wire = encode_all(items)
    place = data.draw(st.integers(0, len(wire)))
    wire = wire[:place] + garbage + wire[place:]
    whole, one = decode_all(wire, [])
    split, two = decode_all(wire, cuts_of(data, wire))
    assert whole == split
    assert type(one.error) is type(two.error)
    assert one.error is None or isinstance(one.error, ProtocolError)


@small
@given(messages, st.data())
def test_what_is_received_in_place_is_what_was_sent(items, data):
    wire = encode_all(items)
    whole, _ = decode_all(wire, [])
    decoder, found, at = Decoder(), [], 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "RPC_READ_BYTES", 4)  # so that nearly every frame is received in place
        while at < len(wire):
            room = decoder.room()
            most = len(wire) - at if room is None else min(len(room), len(wire) - at)
            count = data.draw(st.integers(1, most))
            if room is None:
                found += decoder.feed(wire[at : at + count])
            else:
                room[:count] = wire[at : at + count]
                found += decoder.filled(count)
            at += count
    assert found == whole


frames = st.builds(
    lambda kind, head, size, call_id, tail: HEADER.pack(kind, len(head), size, call_id) + head + tail,
    st.integers(0, 9),
    st.binary(max_size=8),
    st.integers(0, 120),
    st.integers(0, 3),
    st.binary(max_size=20),
)


@small
@given(st.lists(frames | st.binary(max_size=30), max_size=20))
def test_arbitrary_bytes_never_crash_nor_pile_up(pieces):
    decoder = Decoder()
    for piece in pieces:
        decoder.feed(piece)
        assert decoder.unfinished_bytes <= limits.RPC_PARTIAL_BYTES
        assert len(decoder._buffer) <= HEADER_BYTES + limits.RPC_HEAD_MAX + limits.RPC_CHUNK_BYTES


def error_of(*wires):
    decoder = Decoder()
    for wire in wires:
        decoder.feed(wire)
    assert isinstance(decoder.error, ProtocolError)
    return decoder.error.message


@pytest.mark.parametrize("kind", [0, 9, 255])
def test_unknown_kind(kind):
    assert "kind" in error_of(HEADER.pack(kind, 0, 0, 1))


def test_lengths_are_refused_before_anything_is_buffered():
    assert "head" in error_of(HEADER.pack(CALL, limits.RPC_HEAD_MAX + 1, 0, 1))
    assert "body" in error_of(HEADER.pack(CALL, 0, limits.RPC_BODY_MAX + 1, 1))


@pytest.mark.parametrize(
    "head", [b"\xc1", b"\x91", b"\x81\x80\x01", b"\xa1\xff", b"\x91" * 2000 + b"\x01", b"\x01\x01"]
)
def test_bad_msgpack(head):
    assert "msgpack" in error_of(encode(CALL, 1, head))


def test_chunks_must_be_whole():
    begin = HEADER.pack(CALL, 0, 40, 1) + bytes(16)
    assert "chunk" in error_of(begin, encode(CHUNK, 1, b"", b"x"))  # would allow 1-byte objects without number
    assert "chunk" in error_of(begin, encode(CHUNK, 1, b"", b""))
    assert "chunk" in error_of(begin, encode(CHUNK, 1, pack_head(1), bytes(16)))
    assert "inside" in error_of(begin, encode(CALL, 1))


def test_unfinished_bodies_are_bounded():
    begins = [HEADER.pack(CALL, 0, 100, call_id) + bytes(16) for call_id in (1, 2, 3)]
    assert "unfinished" in error_of(*begins)


def test_cancel_forgets_an_unfinished_body():
    decoder = Decoder()
    decoder.feed(HEADER.pack(CALL, 0, 100, 1) + bytes(16))
    assert decoder.feed(encode(CANCEL, 1)) == [(CANCEL, 1, None, b"")]
    assert decoder.unfinished_bytes == 0
    assert decoder.feed(encode(CHUNK, 1, b"", bytes(16))) == []


def test_credits_may_come_inside_a_body():
    decoder = Decoder()
    decoder.feed(HEADER.pack(CALL, 0, 100, 1) + bytes(16))
    assert decoder.feed(encode(CREDIT, 1, pack_head(3))) == [(CREDIT, 1, 3, b"")]


def test_bodies_nobody_waits_for_are_skipped():
    decoder = Decoder(wanted={7})
    wire = encode_all([(REPLY, {}, bytes(60))])
    assert decoder.feed(wire) == []
    assert decoder.unfinished_bytes == 0


def test_senders_refuse_what_is_too_large():
    with pytest.raises(HeadTooLarge):
        pack_head({"x": "y" * 4096})
    with pytest.raises(BodyTooLarge):
        pieces_of([bytes(60), bytes(60)])


def test_packing_survives_a_failure():
    with pytest.raises(TypeError):
        pack_head({"x": object()})
    assert pack_head({"x": 1}) == msgpack.packb({"x": 1})


def test_maps_inside_a_head_may_have_integer_keys():
    assert Decoder().feed(encode(CALL, 1, pack_head({"cursors": {1: 2}}))) == [(CALL, 1, {"cursors": {1: 2}}, b"")]
