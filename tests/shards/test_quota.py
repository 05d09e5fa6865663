"""Caps over all shards: what counts and what is refused. Shards are driven by hand here."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics import errors
from topics.board import Board, ChildState
from topics.core.config import TopicConfig
from topics.core.events import Appended
from topics.core.ranges import SeqRanges
from topics.core.render import render_blocks
from topics.core.requests import decode_append
from topics.core.topic import Topic
from topics.errors import TopicsError
from topics.limits import Limits
from topics.shards.expiry import expire_all
from topics.shards.quota import BoardQuota, grows_by
from topics.testing.drafts import Draft
from topics.testing.driver import Driver


@pytest.fixture
def board(tmp_path):
    return Board.create(str(tmp_path / "board"), shards=3, gateways=1)


def started(board, index=0, **caps):
    """A driven shard with a slot on the board."""
    driver = Driver(monitored=False).start()
    return take_slot(driver, board, index, **caps)


def take_slot(driver, board, index=0, **caps):
    engine = driver.store.engine
    engine.quota = BoardQuota(board, index, engine.holdings, **caps)
    engine.quota.publish()
    return driver


def refusal(call, *arguments, **more):
    with pytest.raises(TopicsError) as refused:
        call(*arguments, **more)
    return refused.value


# --- topics -------------------------------------------------------------------------------------------------------


def test_topics_are_capped_over_all_shards(board):
    one, two = started(board, 0, max_topics=3), started(board, 1, max_topics=3)
    one.put("a", {})
    two.put("b", {})
    two.append("c", [Draft(b"1")])
    assert board.total("topics") == 3
    for shard in (one, two):
        for create in (lambda shard=shard: shard.put("d", {}), lambda shard=shard: shard.append("d", [Draft(b"1")])):
            error = refusal(create)
            assert error.code == errors.THROTTLED
            assert error.detail == {"limit": "max_topics", "max": 3, "retry_after_ms": 1000}
    assert board.total("topics") == 3
    one.put("a", {"ttl_ms": 5})  # an update
    two.append("b", [Draft(b"1")])
    two.commit()
    two.remove("b")
    refusal(one.put, "d", {})  # it is there until its removal is durable
    two.commit()
    one.put("d", {})
    assert board.total("topics") == 3


def test_a_refused_creation_leaves_nothing_behind(board):
    shard = started(board, max_topics=1)
    shard.put("a", {})
    state = shard.store.engine.state
    engine = shard.store.engine

    def taken() -> tuple[object, ...]:
        return state.next_cell, state.next_topic_id, state.next_epoch, list(state.free_cells), engine.log.last_lsn

    before = taken()
    refusal(shard.put, "b", {})
    refusal(shard.append, "b", [Draft(b"1")])
    assert taken() == before
    assert "b" not in state.topics


def test_a_creation_that_is_refused_for_another_reason_is_not_counted(board):
    shard = started(board, max_topics=5)
    refusal(shard.append, "a", [Draft(b"1")], config={"cap_bytes": 1, "discard": "reject"})
    assert board.total("topics") == 0


def test_zero_is_off(board):
    shard = started(board)
    for n in range(20):
        shard.append(f"t{n}", [Draft(b"1")])
    assert board.total("topics") == 0  # nobody asked; the next tick tells
    shard.store.engine.quota.publish()
    assert board.total("topics") == 20


def test_what_came_back_after_a_crash_is_what_counts(board):
    shard = started(board, max_topics=9, max_bytes=10**6)
    shard.append("kept", [Draft(b"1")], config={"durability": "fsync"})
    shard.commit()
    shard.append("lost", [Draft(b'"' + b"x" * 100 + b'"')], config={"durability": "fsync"})
    assert board.total("topics") == 2
    held = board.total("bytes_live")
    shard.crash(1, power_loss=True)
    assert (board.total("topics"), board.total("bytes_live")) == (2, held)  # the slot outlives the process
    take_slot(shard, board, max_topics=9, max_bytes=10**6)
    state = shard.store.engine.state
    assert board.total("topics") == len(state.by_id)
    assert board.total("bytes_live") == sum(topic.bytes for topic in state.by_id.values()) <= held


def test_nothing_new_is_let_in_before_every_shard_has_counted(board):
    for index in (0, 1):
        board.watch_shard(index).set("state", ChildState.STARTING)  # the third is not served
    shard = started(board, max_topics=9)
    error = refusal(shard.put, "a", {})
    assert (error.code, error.detail) == (errors.NOT_READY, {"retry_after_ms": 500})
    started(board, 1)
    shard.put("a", {})
    board.shard(1).set("counted", 0)
    shard.put("b", {})  # once is enough: what a shard said stands while it is down


# --- bytes --------------------------------------------------------------------------------------------------------

HUNDRED = Draft(b'"' + b"x" * 100 + b'"')


def size_of(driver, name):
    return driver.store.engine.state.topics[name].bytes


def test_bytes_are_capped_over_all_shards(board):
    one, two = (started(board, index, max_bytes=500) for index in (0, 1))
    one.append("a", [HUNDRED] * 2)
    one.commit()
    record = size_of(one, "a") // 2
    two.append("b", [HUNDRED])
    assert board.total("bytes_live") == 3 * record  # also before it is durable
    error = refusal(one.append, "a", [HUNDRED])
    assert error.code == errors.THROTTLED
    assert error.detail == {"limit": "max_total_bytes", "max": 500, "retry_after_ms": 1000}
    refusal(two.append, "c", [HUNDRED])
    assert board.total("bytes_live") == 3 * record
    one.append("a", [Draft(b"1")])  # a small one still fits
    one.commit()
    one.delete("a", 3, None)
    one.commit()
    one.store.engine.quota.publish()
    two.append("b", [HUNDRED])


def test_a_topic_that_drops_its_oldest_goes_on_when_the_server_is_full(board):
    shard = started(board, max_bytes=1000)
    shard.append("ring", [HUNDRED] * 2, config={"cap_records": 2})
    shard.append("bytes", [HUNDRED] * 2, config={"cap_bytes": 300})
    shard.commit()
    while True:
        try:
            shard.append("other", [Draft(b"1")])
        except TopicsError:
            break
    shard.commit()
    for _ in range(5):
        shard.append("ring", [HUNDRED])
        shard.append("bytes", [HUNDRED])
        refusal(shard.append, "other", [Draft(b"1")])
    shard.commit()
    shard.store.engine.quota.publish()
    assert board.total("bytes_live") <= 1000


def test_what_expired_unseen_is_let_go(board):
    shard = started(board, max_bytes=500)
    shard.append("a", [HUNDRED] * 3, config={"ttl_ms": 10})
    shard.commit()
    refusal(shard.append, "b", [HUNDRED])
    shard.clock.advance(20)
    for _ in expire_all(shard.store.engine):
        pass
    assert shard.store.engine.holdings.bytes == 0
    shard.append("b", [HUNDRED])


def record_sizes(sizes):
    return b'{"records":[' + b",".join(b'{"data":"%b"}' % (b"x" * size) for size in sizes) + b"]}"


def appended(topic, sizes):
    request = decode_append(record_sizes(sizes), topic.name, Limits())
    blocks = render_blocks(request.records, None, topic.next_seq, 1)
    return Appended(topic.id, topic.epoch, 1, topic.next_seq, len(sizes), b"", blocks)


batch = st.lists(st.integers(0, 300), min_size=1, max_size=5)


caps = st.tuples(st.integers(0, 6), st.sampled_from([0, 100, 700]))


@given(st.lists(batch, max_size=6), batch, caps, st.sets(st.integers(1, 9)))
def test_a_write_grows_a_topic_by_no_more_than_was_said(writes, last, caps, deleted):
    topic = Topic(1, "t", 1, TopicConfig(cap_records=caps[0], cap_bytes=caps[1]))
    for sizes in writes:
        topic.append(appended(topic, sizes).blocks, 1)
    for seq in deleted:
        topic.delete(0, SeqRanges.from_ascending([seq]))
    event = appended(topic, last)
    size, before = sum(sum(block.sizes()) for block in event.blocks), topic.bytes
    said = grows_by(topic, event.count, size)
    topic.append(event.blocks, 1)
    assert topic.bytes - before <= said <= size
    if topic.next_live(0) <= event.first_seq:  # nothing of the write itself was evicted
        assert topic.bytes - before == said


@pytest.mark.parametrize("seed", range(12))
def test_the_sums_are_those_of_the_topics(seed):
    rng, driver = random.Random(seed), Driver(monitored=False).start()
    print(f"seed {seed}")
    for _ in range(120):
        step(driver, rng)
        engine = driver.store.engine
        topics = engine.state.by_id.values()
        assert engine.holdings.topics == len(topics)
        assert engine.holdings.records == sum(topic.count for topic in topics)
        assert engine.holdings.bytes == sum(topic.bytes for topic in topics)
        assert engine.holdings.pending_bytes == sum(topic.pending_bytes for topic in topics)


def step(driver, rng):
    name, kind = rng.choice("abc"), rng.random()
    known = driver.store.engine.state.topics.get(name)
    if kind < 0.6:
        config = {"durability": rng.choice(("fsync", "disk", "memory")), "ttl_ms": rng.choice((0, 30))}
        config |= {"cap_records": rng.choice((0, 4)), "cap_bytes": rng.choice((0, 300))}
        driver.append(name, [Draft(b"1" * rng.randint(1, 50)) for _ in range(rng.randint(1, 4))], config=config)
    elif kind < 0.7:
        driver.commit()
        if name in driver.store.engine.state.topics:
            driver.delete(name, driver.topic(name).head_seq, None)
    elif kind < 0.75 and known is not None:
        driver.commit()
        driver.remove(name)
        driver.commit()
    elif kind < 0.85:
        driver.clock.advance(rng.randint(1, 20))
        for _ in expire_all(driver.store.engine):
            pass
    elif kind < 0.95:
        driver.commit()
    elif kind < 0.98:
        driver.commit()
        driver.checkpoint()
    else:
        driver.crash(rng.randrange(1000), power_loss=rng.random() < 0.5)
