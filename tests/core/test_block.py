"""Blocks: whatever goes in comes out, however it was stored, merged or cut; what is not a block is refused."""

import struct

import pytest
import xxhash
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.core.strategies import Draft, block_of, blocks, drafts, facts, many, record_lists, some, u64
from topics.core.block import TS_DELTA_MAX, BadBlock, Block, coalesce
from topics.core.blockform import (
    CHECKSUM_BYTES,
    DELETED,
    HEADER,
    BlockHead,
    check_frame,
    decode_block,
    encode_body,
    encode_frame,
    flags_from_mask,
    mask_from_flags,
)
from topics.limits import BLOCK_RECORDS_MAX, BLOCK_TEXT_BYTES

PLAIN = Draft(b'{"$seq":1,"$ts":2,"data":3}', 1, b'"t"', b'"n"', 17, 0)


def same(one: Block, other: Block) -> bool:
    return facts(one) == facts(other) and one.crlf == other.crlf and bytes(one.text) == bytes(other.text)


# -- round trips


@given(blocks(), u64, u64)
@some
def test_a_body_comes_back_as_it_was(block, topic_id, epoch):
    body = encode_body(block, topic_id, epoch)
    decoded, head = decode_block(body)
    assert same(decoded, block)
    assert (head.topic_id, head.epoch, head.first_seq, head.n) == (topic_id, epoch, block.first_seq, len(block))
    assert head.frame_len == head.body_len == len(body)
    assert encode_body(decoded, topic_id, epoch) == body


@given(blocks(), st.binary(max_size=20), u64, st.data())
@some
def test_a_frame_comes_back_as_it_was_wherever_it_stands(block, before, seed, data):
    dead = data.draw(st.integers(0, 2 ** len(block) - 1))
    frame = encode_frame(block, 7, 1, seed, dead)
    head = check_frame(frame + b"behind", seed)
    assert head.frame_len == len(frame)
    assert mask_from_flags(frame[-len(block) :]) == dead
    decoded, _ = decode_block(memoryview(before + frame + b"behind"), len(before))
    assert same(decoded, block)


@given(record_lists(8))
@some
def test_the_crlf_flag_tells_whether_a_text_has_line_breaks(records):
    block = block_of(1, 0, records)
    decoded, head = decode_block(encode_body(block, 1, 1))
    has_breaks = any(b"\n" in draft.text or b"\r" in draft.text for draft in records)
    assert block.crlf == decoded.crlf == bool(head.flags & 1) == has_breaks


@given(blocks())
@some
def test_sizes_count_text_and_tag(block):
    assert list(block.sizes()) == [len(fact.text) + len(fact.tag) for fact in facts(block)]
    decoded, _ = decode_block(encode_body(block, 1, 1))
    assert decoded.sizes() == block.sizes()
    assert decoded.size == block.size == sum(block.sizes())


@given(st.integers(0, 256), st.data())
@some
def test_flags_and_mask_are_two_forms_of_the_same(n, data):
    mask = data.draw(st.integers(0, 2**n - 1))
    flags = flags_from_mask(mask, n)
    assert len(flags) == n
    assert [flag == DELETED for flag in flags] == [bool(mask >> i & 1) for i in range(n)]
    assert mask_from_flags(flags) == mask


@given(st.binary(max_size=64))
def test_every_flag_but_one_means_live(flags):
    assert mask_from_flags(flags) == sum(1 << i for i, flag in enumerate(flags) if flag == 0xD5)


# -- growing, merging, cutting


@given(record_lists(40), record_lists(40), st.integers(0, 2**31))
@some
def test_extending_is_concatenation(first, second, pause):
    one = block_of(10, 1000, first)
    other = block_of(10 + len(first), one.base_ts + one.ts[-1] + pause, second)
    expected = facts(one) + facts(other)
    before = facts(other)
    one.extend(other)
    assert facts(one) == expected
    assert facts(other) == before
    assert one.crlf == any(b"\n" in fact.text or b"\r" in fact.text for fact in expected)
    assert len(set(one.nodes)) == len(one.nodes)


@given(blocks(20), record_lists(20))
@some
def test_a_decoded_block_grows_after_thaw(block, more):
    decoded, _ = decode_block(encode_body(block, 1, 1))
    other = block_of(block.last_seq + 1, block.base_ts + block.ts[-1], more)
    decoded.thaw()
    decoded.extend(other)
    assert facts(decoded) == facts(block) + facts(other)


@given(st.lists(st.tuples(record_lists(200), st.integers(0, 2), st.integers(0, 2**33)), min_size=1, max_size=8))
@some
def test_coalescing_keeps_records_order_and_limits(pieces):
    parts, seq, ts = [], 1, 0
    for records, gap, pause in pieces:
        part = block_of(seq, ts, records)
        parts.append(part)
        seq, ts = part.last_seq + 1 + gap, ts + part.ts[-1] + pause
    merged = coalesce(parts)
    assert [fact for block in merged for fact in facts(block)] == [fact for part in parts for fact in facts(part)]
    for block in merged:
        assert len(block) <= BLOCK_RECORDS_MAX
        assert same(decode_block(encode_body(block, 1, 1))[0], block)


def test_coalescing_makes_few_blocks_and_leaves_its_input_alone():
    parts = [block_of(seq, seq, [PLAIN]) for seq in range(1, 601)]
    merged = coalesce(parts)
    assert [len(block) for block in merged] == [256, 256, 88]
    assert all(len(part) == 1 for part in parts)


def test_coalescing_stops_at_the_text_limit_and_at_gaps():
    large = PLAIN._replace(text=b"x" * (BLOCK_TEXT_BYTES // 2))
    assert len(coalesce([block_of(seq, 0, [large]) for seq in (1, 2, 3)])) == 3
    assert [block.first_seq for block in coalesce([block_of(seq, 0, [PLAIN]) for seq in (1, 2, 4, 5)])] == [1, 4]


def test_a_block_takes_no_record_whose_time_it_cannot_hold():
    block = block_of(1, 1000, [PLAIN])
    assert block.takes(block_of(2, 1000 + TS_DELTA_MAX - PLAIN.ts_step, [PLAIN]))
    assert not block.takes(block_of(2, 1001 + TS_DELTA_MAX - PLAIN.ts_step, [PLAIN]))
    assert not block.takes(block_of(2, 999, [PLAIN])), "time goes back: a delta cannot be negative"
    assert len(coalesce([block, block_of(2, 0, [PLAIN])])) == 2


@given(blocks(40), st.data())
@some
def test_cutting_is_slicing(block, data):
    low = data.draw(st.integers(0, len(block) - 1))
    high = data.draw(st.integers(low + 1, len(block)))
    part = block.cut(low, high)
    assert facts(part) == facts(block)[low:high]
    assert part.sizes() == block.sizes()[low:high]
    assert same(decode_block(encode_body(part, 1, 1))[0], part)


@given(drafts(), drafts())
@some
def test_an_empty_name_is_a_name(one, other):
    block = block_of(1, 0, [one._replace(tag=b'""', node=b'""'), other._replace(tag=b"", node=b"")])
    decoded, _ = decode_block(encode_body(block, 1, 1))
    assert [(fact.tag, fact.node) for fact in facts(decoded)] == [(b'""', b'""'), (b"", b"")]


# -- damage


@given(blocks(6), u64, st.integers(1, 255))
@some
def test_every_flipped_byte_of_the_body_is_found(block, seed, mask):
    frame = bytearray(encode_frame(block, 7, 1, seed, 0))
    for at in range(len(frame) - len(block)):  # body and checksum
        frame[at] ^= mask
        with pytest.raises(BadBlock):
            check_frame(bytes(frame), seed)
        frame[at] ^= mask
    for at in range(len(frame) - len(block), len(frame)):  # a flag is outside the checksum
        frame[at] ^= mask
        check_frame(bytes(frame), seed)
        frame[at] ^= mask


@given(blocks(6), u64, u64)
@some
def test_another_files_frame_never_checks(block, seed, other):
    assume(seed != other)
    with pytest.raises(BadBlock):
        check_frame(encode_frame(block, 7, 1, seed, 0), other)


@given(blocks(4))
@some
def test_every_truncation_is_found(block):
    frame = encode_frame(block, 7, 1, 9, 0)
    body = encode_body(block, 7, 1)
    for size in range(len(frame)):
        with pytest.raises(BadBlock):
            check_frame(frame[:size], 9)
    for size in range(len(body)):
        with pytest.raises(BadBlock):
            decode_block(body[:size])


def probe(data: bytes, offset: int) -> None:
    """Whatever is decoded can be used; anything else is a BadBlock."""
    try:
        block, _ = decode_block(data, offset)
    except BadBlock:
        return
    facts(block)
    block.sizes()
    assert len(block.cut(0, len(block))) == len(block)


@given(st.binary(max_size=300), st.integers(0, 20))
@many
def test_arbitrary_bytes_are_refused(data, offset):
    probe(data, offset)
    with pytest.raises(BadBlock):
        check_frame(data, 0)


@given(blocks(6), st.lists(st.tuples(st.integers(0), st.integers(0, 255)), min_size=1, max_size=4))
@many
def test_a_changed_block_is_refused_or_usable(block, changes):
    body = bytearray(encode_body(block, 1, 1))
    for at, value in changes:
        body[at % len(body)] = value
    probe(bytes(body), 0)


@pytest.mark.parametrize("mask", [0x01, 0x0F, 0x80, 0xFF])
def test_every_changed_byte_of_a_block_with_extensions_is_refused_or_usable(mask):
    terms = [PLAIN._replace(due=9), PLAIN._replace(origin=bytes(16), expires=5), PLAIN._replace(due=7, expires=6)]
    body = encode_body(block_of(1, 0, terms), 1, 1)
    for at in range(len(body)):
        probe(body[:at] + bytes((body[at] ^ mask,)) + body[at + 1 :], 0)


headers = st.builds(
    lambda fields, tail: HEADER.pack(*fields) + tail,
    st.tuples(
        st.integers(0, 2**32 - 1), st.just(1), st.just(0), st.integers(0, 3), u64, u64,
        st.integers(0, 2**32 - 1), *[st.integers(0, 2**32 - 1)] * 3, *[u64] * 4,
    ),
    st.binary(max_size=64),
)  # fmt: skip


@given(headers)
@many
def test_huge_lengths_allocate_nothing(data):
    with pytest.raises(BadBlock):
        decode_block(data)


@given(st.integers(1, 4), st.binary(min_size=80, max_size=80), st.integers(0, 60), st.integers(0, 200))
@many
def test_random_columns_behind_a_fitting_header(n, columns, side_len, text_len):
    body_len = HEADER.size + 20 * n + side_len + text_len
    head = HEADER.pack(body_len, 1, 0, 2, 1, 1, n, text_len, text_len, side_len, 1, 1, 0, 0)
    probe(head + columns[: 20 * n] + bytes(side_len) + b"x" * text_len, 0)


@pytest.mark.parametrize(
    ("at", "value"),
    [(4, 2), (5, 1), (6, 8), (7, 1)],
    ids=["version", "derived", "ids", "unknown flag"],
)
def test_what_this_version_does_not_write_is_refused_not_guessed(at, value):
    body = bytearray(encode_body(block_of(1, 0, [PLAIN]), 1, 1))
    body[at] = value
    with pytest.raises(BadBlock, match="not known"):
        decode_block(bytes(body))


def test_a_body_without_trailer_is_no_frame():
    body = encode_body(block_of(1, 0, [PLAIN]), 1, 1)
    check = struct.pack("<Q", xxhash.xxh3_64_intdigest(body, 5))
    with pytest.raises(BadBlock):
        check_frame(body + check + bytes(100), 5)
    assert BlockHead(body).frame_len + CHECKSUM_BYTES + 1 == len(encode_frame(block_of(1, 0, [PLAIN]), 1, 1, 5, 0))
