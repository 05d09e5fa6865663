"""Rendering: the text of a record is written once, is JSON, and holds the client's bytes as they came."""

import json

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tests.core.strategies import facts, json_texts, many, meta_texts, seqs, some, texts
from topics.core.chunk import Chunk
from topics.core.diff import Window, render
from topics.core.render import render_blocks
from topics.core.requests import Diff, RecordIn, quoted
from topics.limits import BLOCK_RECORDS_MAX, BLOCK_TEXT_BYTES

NO_META = msgspec.Raw(b"")

records = st.builds(
    RecordIn,
    json_texts.map(msgspec.Raw),
    st.none() | texts,
    st.none() | texts,
    st.one_of(st.just(NO_META), st.just(msgspec.Raw(b"null")), meta_texts.map(msgspec.Raw)),
)
record_lists = st.lists(records, min_size=1, max_size=8)
stamps = st.integers(0, 2**53)


def meta_of(record: RecordIn) -> bytes:
    return b"" if bytes(record.meta) == b"null" else bytes(record.meta)


def text_of(record: RecordIn, seq: int, ts: int, batch_node: str | None) -> bytes:
    """The specification of a record's text, piece by piece."""
    node = record.node if record.node is not None else batch_node
    pieces = [b'"$seq":%d' % seq, b'"$ts":%d' % ts]
    pieces += [b'"$node":' + quoted(node)] if node is not None else []
    pieces += [b'"data":' + bytes(record.data)]
    pieces += [b'"meta":' + meta_of(record)] if meta_of(record) else []
    return b"{" + b",".join(pieces) + b"}"


@given(record_lists, st.none() | texts, seqs, stamps)
@many
def test_a_record_is_rendered_as_specified(items, node, first_seq, ts):
    found = [fact for block in render_blocks(items, node, first_seq, ts) for fact in facts(block)]
    assert [fact.seq for fact in found] == list(range(first_seq, first_seq + len(items)))
    for fact, record in zip(found, items, strict=True):
        assert fact.text == text_of(record, fact.seq, ts, node)
        assert fact.ts == ts
        assert fact.tag == (quoted(record.tag) if record.tag is not None else b"")
        name = record.node if record.node is not None else node
        assert fact.node == (quoted(name) if name is not None else b"")
        assert fact.text[fact.data_off :].startswith(b',"data":' + bytes(record.data))
        assert fact.meta_len == len(meta_of(record))


@given(record_lists, st.none() | texts, st.integers(1, 2**53), stamps)
@some
def test_a_text_is_json_that_says_what_was_written(items, node, first_seq, ts):
    found = [fact for block in render_blocks(items, node, first_seq, ts) for fact in facts(block)]
    for fact, record in zip(found, items, strict=True):
        value = json.loads(fact.text)
        assert (value["$seq"], value["$ts"]) == (fact.seq, ts)
        assert value.get("$node") == (record.node if record.node is not None else node)
        assert "$tag" not in value


@given(record_lists, st.none() | texts, st.booleans(), st.booleans(), st.booleans())
@many
def test_a_read_cuts_and_splices_what_was_asked_for(items, node, include_tags, include_meta, include_data):
    (block,) = render_blocks(items, node, 5, 1000)
    query = Diff(include_tags=include_tags, include_meta=include_meta, include_data=include_data)
    window = Window(block, 0, 0, len(block), Chunk.of(block))
    answer = b"[" + b",".join(bytes(piece) for piece in render([window], query, filter_nodes=False)) + b"]"
    for seq, (text, record) in enumerate(zip(json.loads(answer), items, strict=True), 5):
        expected = json.loads(text_of(record, seq, 1000, node))
        if include_tags and record.tag is not None:
            expected["$tag"] = record.tag
        if not include_meta:
            expected.pop("meta", None)
        if not include_data:
            expected.pop("data")
        assert text == expected


def plain(size: int) -> RecordIn:
    return RecordIn(msgspec.Raw(b'"' + b"x" * (size - 2) + b'"'))


def test_blocks_close_at_256_records():
    blocks = render_blocks([plain(2)] * 600, None, 1, 0)
    assert [(block.first_seq, len(block)) for block in blocks] == [(1, 256), (257, 256), (513, 88)]
    assert BLOCK_RECORDS_MAX == 256


def test_blocks_close_at_the_text_limit_and_one_large_record_is_a_block():
    blocks = render_blocks([plain(30_000)] * 5, None, 1, 0)
    assert [len(block) for block in blocks] == [2, 2, 1]
    assert all(len(block.text) < BLOCK_TEXT_BYTES for block in blocks)
    sizes = [len(block) for block in render_blocks([plain(10), plain(1 << 20), plain(10)], None, 1, 0)]
    assert sizes == [1, 1, 1]


def test_the_longest_names_fit_their_columns():
    record = RecordIn(msgspec.Raw(b"1"), "\x00" * 256, "\x00" * 128, msgspec.Raw(b'{"k":"' + b"x" * 16_376 + b'"}'))
    (block,) = render_blocks([record], None, 2**64 - 2, 2**53)
    assert len(block.tag(0)) == 6 * 256 + 2
    assert block.record(0)[block.data_offs[0] :].startswith(b',"data":1,"meta":{"k":"x')
