"""Records, blocks and events for property tests."""

import json
from typing import Any, NamedTuple

from hypothesis import settings
from hypothesis import strategies as st

from topics.core.block import Block
from topics.core.events import Appended, CreatedAndAppended, Event
from topics.core.extras import Extras
from topics.core.requests import quoted

# No deadline: the first example of a run pays for imports, and machines differ.
some = settings(max_examples=30, deadline=None)
many = settings(max_examples=100, deadline=None)

# Text with everything that JSON escapes, that UTF-8 makes long, and that sorts oddly.
texts = st.text(
    st.one_of(
        st.sampled_from('ab"\\/\n\r\t\b\x00\x1f\x7f*é€𝄞\u2028\uffff'),
        st.characters(exclude_categories=["Cs"]),
    ),
    max_size=12,
)
json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=4,
)
# JSON as clients write it: compact, spread over lines, and forms that no encoder would give back.
json_texts = st.one_of(
    json_values.map(lambda value: json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()),
    json_values.map(lambda value: json.dumps(value, indent=1).replace("\n", "\r\n").encode()),
    st.sampled_from(
        [b"1.0E+2", b"-0", b"1e400", b"9" * 40, b'{"a":1,"a":2}', b"[ 1 ,\n2\t]", b'"\\u00e9\\/"', b"{ }", b"null"]
    ),
)
meta_texts = st.one_of(
    st.dictionaries(texts, texts, max_size=4).map(lambda meta: json.dumps(meta, ensure_ascii=False).encode()),
    st.sampled_from([b"{}", b'{ "a" :\n"b" }', b'{"a":"x","a":"y"}']),
)
seqs = st.integers(1, 2**64 - 1 - 2**32)
u64 = st.integers(0, 2**64 - 1)


class Draft(NamedTuple):
    """What a block is told about one record."""

    text: bytes
    ts_step: int
    tag: bytes
    node: bytes
    data_off: int
    meta_len: int
    priority: int = 0
    hops: int = 0
    due: int = 0
    origin: bytes = b""
    expires: int = 0


class Fact(NamedTuple):
    """What a block says about one record."""

    seq: int
    ts: int
    text: bytes
    tag: bytes
    node: bytes
    data_off: int
    meta_len: int
    priority: int
    hops: int
    due: int
    origin: bytes
    expires: int


@st.composite
def drafts(draw: st.DrawFn) -> Draft:
    data, meta = draw(json_texts), draw(st.none() | meta_texts)
    tag, node = draw(st.none() | texts), draw(st.none() | st.sampled_from(["", "n1", "né", '"\\']) | texts)
    node_name = quoted(node) if node is not None else b""
    head = b'{"$seq":1,"$ts":2' + (b',"$node":' + node_name if node_name else b"")
    tail = b',"meta":' + meta if meta is not None else b""
    return Draft(
        head + b',"data":' + data + tail + b"}",
        draw(st.integers(0, 1000)),
        quoted(tag) if tag is not None else b"",
        node_name,
        len(head),
        len(meta or b""),
        draw(st.just(0) | st.integers(0, 255)),
        draw(st.integers(0, 8)),
        draw(st.just(0) | st.integers(1, 2**64 - 1)),
        draw(st.just(b"") | st.binary(min_size=16, max_size=16)),
        draw(st.just(0) | st.integers(1, 2**64 - 1)),
    )


def block_of(first_seq: int, base_ts: int, records: list[Draft]) -> Block:
    block = Block(first_seq, base_ts)
    ts = base_ts
    for index, draft in enumerate(records):
        ts += draft.ts_step
        block.add(
            draft.text,
            ts,
            draft.tag,
            draft.node,
            draft.data_off,
            draft.meta_len,
            priority=draft.priority,
            hops=draft.hops,
        )
        if draft.due:
            block.need_extras().due(index, draft.due)
        if draft.origin:
            block.need_extras().origins[index] = draft.origin
        if draft.expires:
            block.need_extras().expire(index, draft.expires)
    return block


def facts(block: Block) -> list[Fact]:
    extras = block.extras or Extras()
    assert block.extras is None or block.extras, "a block without extras has none"
    assert extras.ranked == any(block.priorities)
    return [
        Fact(
            block.first_seq + i,
            block.base_ts + block.ts[i],
            block.record(i),
            block.tag(i),
            block.nodes[block.node_ids[i] - 1] if block.node_ids[i] else b"",
            block.data_offs[i],
            block.meta_lens[i],
            block.priorities[i],
            block.hops[i],
            extras.dues.get(i) if extras.dues is not None else 0,
            extras.origins.get(i, b""),
            extras.expiries.get(i) if extras.expiries is not None else 0,
        )
        for i in range(len(block))
    ]


@st.composite
def record_lists(draw: st.DrawFn, max_size: int = 256) -> list[Draft]:
    """Short lists mostly; sometimes a few drafts repeated up to the size of a full block."""
    few = draw(st.lists(drafts(), min_size=1, max_size=min(5, max_size)))
    size = draw(st.one_of(st.just(len(few)), st.integers(1, max_size), st.just(max_size)))
    return [few[i % len(few)] for i in range(size)]


@st.composite
def blocks(draw: st.DrawFn, max_size: int = 256) -> Block:
    return block_of(draw(seqs), draw(st.integers(0, 2**63)), draw(record_lists(max_size)))


def comparable(event: Event) -> object:
    """Blocks have no equality of their own."""
    if isinstance(event, Appended):
        scalars = (event.topic_id, event.epoch, event.ts, event.first_seq, event.count, event.key, event.dedups)
        return (Appended, scalars, [facts(block) for block in event.blocks])
    if isinstance(event, CreatedAndAppended):
        return (event.created, comparable(event.appended))
    return event
