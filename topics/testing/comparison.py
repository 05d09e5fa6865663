"""How the driver compares: what the engine holds and answers, against what the model says it should."""

import json
import random
from collections.abc import Iterator
from typing import Any

from topics.core import diff, replies
from topics.core.idempotency import digest_key, digest_record_key
from topics.core.requests import Diff, quoted
from topics.core.topic import Topic
from topics.shards.store import Store
from topics.testing.drafts import Draft, Settings
from topics.testing.reference import DEDUP, Found, Page, Query, ReferenceTopic


class Mismatch(AssertionError):
    """The engine and the model disagree."""


def settings_of(topic: Topic) -> Settings:
    config = topic.config
    return Settings(
        config.durability, config.ttl_ms, config.cap_records, config.cap_bytes, config.discard,
        config.idempotency_window_ms, config.compression, config.compression_min_bytes,
        config.message_ids, config.id_salt,
    )  # fmt: skip


def salted(topic: Topic, settings: Settings) -> Settings:
    """With the salt that the engine has drawn for the ids of this topic."""
    return settings._replace(salt=(topic.becoming or topic.config).id_salt)


def found_of(topic: Topic) -> Found:
    evicted = frozenset(seq for first, last in topic.evicted.ranges for seq in range(first, last + 1))
    holes = {seq: hole.reason for hole in topic.holes.items for seq in range(hole.first, hole.last + 1)}
    return Found(topic.head_seq, topic.epoch, topic.count, evicted, holes)


def queries(topic: ReferenceTopic, rng: random.Random) -> Iterator[Query]:
    head = topic.head_seq
    cursors = {
        0,
        head,
        head + 1,
        topic.earliest_seq - 1,
        topic.evict_floor - 1,
        topic.evict_floor - 2,  # only what was lost last lies ahead of it
        *(rng.randint(0, head + 1) for _ in range(3)),
    }
    for from_seq in sorted(cursor for cursor in cursors if cursor >= 0):
        yield Query(
            from_seq=from_seq, limit=rng.choice((1, 2, 5, 256)), batch_bytes=rng.choice((1, 150, 1000, 1 << 20)),
            nodes=frozenset(rng.sample(("n1", "n2", "näh"), rng.randint(0, 2))),
            tags=rng.random() < 0.5, data=rng.random() < 0.7, meta=rng.random() < 0.7,
        )  # fmt: skip


def page_body(name: str, page: Page) -> bytes:
    gap = b"null"
    if page.tombstone is not None:
        first, last, reason, missed = page.tombstone
        after = page.earliest_seq if reason == "recreated" else last + 1
        gap = (
            b'{"$type":"tombstone","$seq":%d,"gap_from":%d,"gap_to":%d,"reason":"%b","missed_estimate":%d,'
            b'"earliest_seq":%d,"head_seq":%d}'
        ) % (
            after, first, last, reason.encode(), missed, page.earliest_seq, page.head_seq,
        )  # fmt: skip
    return (
        b'{"topic":"%b","records":[%b],"next_from_seq":%d,"head_seq":%d,"earliest_seq":%d,"caught_up":%b,"tombstone":%b,"lag":%d'
        % (
            name.encode(), b",".join(page.texts), page.next_from_seq, page.head_seq, page.earliest_seq,
            b"true" if page.next_from_seq == page.head_seq else b"false", gap, page.head_seq - page.next_from_seq,
        )
    )  # fmt: skip


def page_of(store: Store, topic: Topic, query: Query) -> bytes:
    """What the engine answers."""
    wanted = Diff(
        from_seq=query.from_seq, limit=query.limit, nodes=frozenset(quoted(node) for node in query.nodes),
        include_tags=query.tags, include_meta=query.meta, include_data=query.data, batch_bytes=query.batch_bytes,
    )  # fmt: skip
    plan = diff.plan(topic, wanted)
    for window in plan.windows:
        if window.block is None:
            window.block = store.read_block(window.chunk)
    pieces = diff.render(plan.windows, wanted, filter_nodes=True)
    return b"".join(replies.difference(topic.name, plan, pieces))


def append_body(drafts: list[Draft], key: str | None, config: dict[str, Any] | None) -> bytes:
    parts = []
    for draft in drafts:
        fields = [b'"data":' + draft.data]
        fields += [b'"tag":' + quoted(draft.tag)] if draft.tag is not None else []
        fields += [b'"node":' + quoted(draft.node)] if draft.node is not None else []
        fields += [b'"meta":' + draft.meta] if draft.meta else []
        fields += [b'"dedup_key":' + quoted(draft.dedup)] if draft.dedup is not None else []
        fields += [b'"ttl_ms":%d' % draft.ttl_ms] if draft.ttl_ms is not None else []
        parts.append(b"{" + b",".join(fields) + b"}")
    body = b'{"records":[' + b",".join(parts) + b"]"
    body += b',"idempotency_key":' + quoted(key) if key is not None else b""
    body += b',"config":' + json.dumps(config).encode() if config is not None else b""
    return body + b"}"


def digest_of(key: str) -> bytes:
    """Of a key as the model has it."""
    kind, _, text = key.partition(":")
    return digest_record_key(text) if kind == DEDUP else digest_key(key)


def expect(actual: object, expected: object, *what: object) -> None:
    if actual != expected:
        raise Mismatch(f"{' '.join(map(str, what))}\n  is       {actual!r}\n  expected {expected!r}")
