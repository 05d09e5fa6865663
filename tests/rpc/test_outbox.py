"""The send queue: order, fairness, bounds."""

import itertools
from collections import defaultdict

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from topics.rpc.outbox import FRAME_COST, Outbox
from topics.rpc.wire import CANCEL, ITEM, REPLY, Buffer, Decoder, encode, pack_head

HEAD = pack_head({})


@pytest.fixture(autouse=True)
def small_limits(set_limits):
    set_limits(
        RPC_CHUNK_BYTES=100,
        RPC_JOIN_BYTES=50,
        RPC_SEND_BATCH_BYTES=400,
        RPC_SEND_QUEUE_BYTES=4000,
        RPC_PARTIAL_BYTES=6000,
        RPC_BODY_MAX=6000,
    )


def chained(sends):
    return list(itertools.chain.from_iterable(sends))


def drain(outbox, decoder=None):
    """Send by send, the messages the receiver can see after it."""
    decoder = decoder or Decoder()
    sends = []
    while not outbox.empty:
        sends.append([(call_id, len(body)) for _, call_id, _, body in decoder.feed(b"".join(outbox.take()))])
        outbox.sent()
        assert decoder.error is None
    assert outbox.queued_bytes == 0
    assert decoder.unfinished_bytes == 0
    return sends


def test_all_small_messages_leave_in_one_send():
    outbox = Outbox()
    for call_id in range(10):
        outbox.put(REPLY, call_id, HEAD, b"x" * 5)
    assert len(outbox.take()) == 1


def test_large_bodies_are_not_copied():
    outbox = Outbox()
    body = bytes(1000)
    outbox.put(REPLY, 1, HEAD, body)
    views = [part for part in outbox.take() if isinstance(part, memoryview)]
    assert views
    assert all(view.obj is body for view in views)


def test_a_small_message_overtakes_a_large_one():
    outbox = Outbox()
    outbox.put(REPLY, 1, HEAD, bytes(3000))
    outbox.take()
    outbox.put(REPLY, 2, HEAD, b"small")
    decoder = Decoder(wanted={2})
    assert [call_id for _, call_id, _, _ in decoder.feed(b"".join(outbox.take()))] == [2]


def test_large_bodies_take_turns():
    outbox = Outbox()
    outbox.put(REPLY, 1, HEAD, bytes(3000))
    outbox.put(REPLY, 2, HEAD, bytes(300))
    assert chained(drain(outbox)) == [(2, 300), (1, 3000)]


def test_messages_of_one_call_keep_their_order():
    outbox = Outbox()
    for size in (3000, 5, 250, 7, 80):
        outbox.put(ITEM, 1, HEAD, bytes(size))
    outbox.put(REPLY, 2, HEAD, b"")
    done = chained(drain(outbox))
    assert done[0] == (2, 0)
    assert done[1:] == [(1, size) for size in (3000, 5, 250, 7, 80)]


def test_a_large_message_waits_for_earlier_small_ones_of_its_call():
    outbox = Outbox()
    for _ in range(50):  # more than one send takes
        outbox.put(ITEM, 1, HEAD, bytes(40))
    outbox.put(REPLY, 1, HEAD, bytes(900))
    assert chained(drain(outbox)) == [(1, 40)] * 50 + [(1, 900)]


def test_a_flood_of_small_messages_does_not_starve_a_large_one():
    outbox, decoder = Outbox(), Decoder()
    outbox.put(REPLY, 1, HEAD, bytes(900))
    sends = 0
    while not any(call_id == 1 for _, call_id, *_ in decoder.feed(b"".join(outbox.take()))):
        outbox.sent()
        for _ in range(10):
            outbox.put(REPLY, 2, HEAD, bytes(40))
        sends += 1
        assert sends < 20


def test_a_body_of_many_pieces_of_any_buffer_type():
    outbox = Outbox()
    pieces: list[Buffer] = [b"a" * 30, bytearray(b"b" * 130), memoryview(b"c" * 300), b""]
    outbox.put(REPLY, 1, HEAD, pieces)
    outbox.put(REPLY, 2, HEAD, [b"tiny", bytearray(b"!")])
    found: dict[int, bytes] = {}
    decoder = Decoder()
    while not outbox.empty:
        found |= {call_id: body for _, call_id, _, body in decoder.feed(b"".join(outbox.take()))}
        outbox.sent()
    assert found == {1: b"a" * 30 + b"b" * 130 + b"c" * 300, 2: b"tiny!"}


def test_room():
    outbox = Outbox()
    assert outbox.has_room(6000)  # larger than the queue, but it may go beside it
    outbox.put(REPLY, 1, HEAD, bytes(6000))
    assert outbox.queued_bytes == 0
    assert not outbox.has_room(6000)
    assert outbox.has_room(1000)
    for call_id in range(2, 5):
        outbox.put(REPLY, call_id, HEAD, bytes(900))
    assert not outbox.has_room(1000)
    assert outbox.has_room(50)  # the last quarter is for small ones
    while outbox.has_room(50):
        outbox.put(REPLY, 9, HEAD, bytes(49))
    assert outbox.queued_bytes <= 4000 + FRAME_COST + 20
    drain(outbox)
    assert outbox.has_room(6000)


def test_unfinished_bodies_stay_within_what_the_receiver_takes():
    outbox = Outbox()
    for call_id in range(1, 5):
        outbox.put(REPLY, call_id, HEAD, bytes(2500))
    assert sorted(chained(drain(outbox))) == [(call_id, 2500) for call_id in range(1, 5)]


def test_drop_sends_the_last_word_instead_of_the_rest():
    outbox = Outbox()
    decoder = Decoder()
    outbox.put(REPLY, 1, HEAD, bytes(6000))
    outbox.put(REPLY, 1, HEAD, b"after")
    decoder.feed(b"".join(outbox.take()))
    outbox.sent()
    outbox.drop(1, encode(CANCEL, 1))
    outbox.put(REPLY, 2, HEAD, bytes(6000))  # fits the receiver's budget only once the first is forgotten
    assert chained(drain(outbox, decoder)) == [(1, 0), (2, 6000)]


def test_drop_of_what_is_not_there():
    outbox = Outbox()
    outbox.drop(1)
    assert outbox.empty
    outbox.drop(1, encode(CANCEL, 1))
    assert drain(outbox) == [[(1, 0)]]


steps = st.lists(
    st.tuples(st.just("put"), st.integers(1, 4), st.integers(0, 900))
    | st.tuples(st.just("drop"), st.integers(1, 4), st.just(0))
    | st.tuples(st.just("take"), st.just(0), st.just(0)),
    max_size=60,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300, deadline=None)
@given(steps)
@example([("put", 1, 50), ("put", 1, 0), ("put", 1, 50)])
@example([("put", 1, 40)] * 20 + [("put", 1, 900)])
def test_any_history_decodes_in_order_per_call(history):
    outbox, decoder = Outbox(), Decoder()
    expected, found = defaultdict(list), defaultdict(list)

    def send():
        for kind, call_id, _, body in decoder.feed(b"".join(outbox.take())):
            found[call_id].append("cancel" if kind == CANCEL else len(body))
        outbox.sent()
        assert decoder.error is None
        assert outbox.queued_bytes >= 0

    for step, call_id, size in history:
        if step == "put":
            outbox.put(ITEM, call_id, HEAD, bytes(size))
            expected[call_id].append(size)
        elif step == "drop":
            outbox.drop(call_id, encode(CANCEL, call_id))
            expected[call_id].append("cancel")
        else:
            send()
    while not outbox.empty:
        send()
    assert outbox.queued_bytes == 0
    assert decoder.unfinished_bytes == 0
    for call_id, said in expected.items():
        assert is_subsequence(found[call_id], said)  # a drop takes back what had not left
        if "cancel" not in said:
            assert found[call_id] == said


def is_subsequence(part, whole):
    rest = iter(whole)
    return all(item in rest for item in part)
