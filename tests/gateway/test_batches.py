"""What a feed hands out: every record once, in frames within their bounds, whatever the view."""

import json

from hypothesis import given
from hypothesis import strategies as st

from topics.core.block import Block
from topics.core.blockform import encode_body
from topics.core.diff import Slice
from topics.core.watching import Subscription
from topics.gateway import sse, ws_frames
from topics.gateway.batches import Batch, View, split
from topics.rpc.open_calls import Reply
from topics.shards.follow import MASK_BYTES

NODES = (b"", b'"a"', b'"b"')


def live_sizes(part: Slice) -> list[int]:
    assert part.block is not None
    return [part.block.sizes()[i] for i in range(part.low, part.high) if not part.dead >> i & 1]


def block_of(first_seq: int, sizes: list[int], nodes: list[int]) -> Block:
    block = Block(first_seq, 1000)
    for index, (size, node) in enumerate(zip(sizes, nodes, strict=True)):
        name = NODES[node]
        head = b'{"$seq":%d,"$ts":1000%b' % (first_seq + index, b',"$node":' + name if name else b"")
        text = head + b',"data":"%b"}' % (b"x" * size)
        block.add(text, 1000, b"", name, len(head), 0)
    return block


@st.composite
def batches(draw):
    """A batch, and the live records in it as (seq, node)."""
    blocks, masks, live, seq = [], [], [], 1
    for _ in range(draw(st.integers(0, 4))):
        seq += draw(st.integers(0, 3))
        n = draw(st.integers(1, 6))
        nodes = draw(st.lists(st.integers(0, 2), min_size=n, max_size=n))
        dead = draw(st.integers(0, (1 << n) - 1))
        block = block_of(seq, draw(st.lists(st.integers(0, 60), min_size=n, max_size=n)), nodes)
        blocks.append(encode_body(block, 1, 1))
        masks.append(dead.to_bytes(MASK_BYTES, "little") if dead else b"")
        live += [(seq + i, nodes[i]) for i in range(n) if not dead >> i & 1]
        seq += n
    head = {
        "from_seq": 0,
        "throttle_ms": 0,
        "to_seq": seq - 1,
        "head_seq": seq + 5,
        "earliest_seq": 1,
        "epoch": 3,
        "tombstone": None,
        "dead": masks,
        "dedupe": True,
    }
    return Batch("t", Reply(head, b"".join(blocks))), live


@given(batches(), st.integers(1, 5), st.integers(1, 400), st.booleans(), st.integers(0, 20))
def test_every_live_record_is_shown_once_and_in_order(drawn, limit, budget, filtered, start):
    batch, live = drawn
    start = min(start, batch.to_seq)
    view = View(Subscription(limit=limit, batch_bytes=budget, nodes=("a",) if filtered else ()))
    frames = batch.frames(view, ws_frames.RENDERER, start)
    assert frames is batch.frames(view, ws_frames.RENDERER, start)
    assert frames[-1].to_seq == batch.to_seq
    shown, at = [], start
    for frame in frames:
        if frame.buffers:
            body = json.loads(b"".join(frame.buffers))
            assert (body["op"], body["topic"], body["head_seq"]) == ("record", "t", batch.head_seq)
            assert (body["from_seq"], body["to_seq"]) == (at, frame.to_seq)
            seqs = [record["$seq"] for record in body["records"]]
            assert 1 <= len(seqs) <= limit
            assert all(at < seq <= frame.to_seq for seq in seqs)
            shown += seqs
        at = frame.to_seq
    assert shown == [seq for seq, node in live if seq > start and not (filtered and node == 1)]


@given(batches(), st.integers(1, 5), st.integers(1, 400))
def test_frames_keep_to_their_bounds_and_are_as_full_as_these_allow(drawn, limit, budget):
    batch, _ = drawn
    groups = []
    for group, _last in split(batch.slices, limit, budget):
        sizes = [size for part in group for size in live_sizes(part)]
        groups.append(sizes)
    for index, sizes in enumerate(groups):
        assert len(sizes) <= limit
        assert sum(sizes) <= budget or len(sizes) == 1
        if index + 1 < len(groups) and groups[index + 1]:
            following = groups[index + 1][0]
            assert len(sizes) == limit or sum(sizes) + following > budget


def test_line_ends_in_a_payload_stay_inside_the_event():
    frame = b"".join(sse.RENDERER.record("t", [b'{"data":{\n"a":\r\n1,\r"b":2}}'], 0, 1, 1))
    lines = frame.decode().split("\n")
    assert "\r" not in frame.decode()
    assert lines[0] == "event: record"
    assert lines[-2:] == ["", ""]
    assert all(line.startswith("data: ") for line in lines[1:-2])
    body = json.loads("\n".join(line.removeprefix("data: ") for line in lines[1:-2]))
    assert body["records"] == [{"data": {"a": 1, "b": 2}}]
