"""Caps over all shards of a directory: topics, bytes and routers, refused as a server does."""

import pytest

import topics
from topics.errors import TopicsError
from topics.testing.server import wait_until


def refused(call) -> tuple[str, str, int]:
    with pytest.raises(TopicsError) as caught:
        call()
    return caught.value.code, caught.value.detail["limit"], caught.value.detail["max"]


def is_taken(db, **fields) -> bool:
    try:
        db.append("d", [{"data": "x" * 3000, **fields}])
    except TopicsError as error:
        if error.detail["limit"] != "max_total_bytes":
            raise
        return False
    return True


def test_topics(tmp_path):
    with topics.open(tmp_path / "data", shards=3, max_topics=5) as db:
        for number in range(5):
            db.append(f"t{number}", [{"data": 1}])
        db.put_group("t0", "readers")  # what a shard keeps for itself does not count
        for again in (lambda: db.put_topic("more"), lambda: db.append("more", [{"data": 1}])):
            assert refused(again) == ("throttled", "max_topics", 5)
        db.append("t1", [{"data": 2}])
        db.put_topic("t1", cap_records=9)
        db.remove_topic("t3")
        db.put_topic("more")
    with topics.open(tmp_path / "data", max_topics=5) as db:
        assert refused(lambda: db.put_topic("another")) == ("throttled", "max_topics", 5)
    with topics.open(tmp_path / "data", max_topics=0) as db:
        db.put_topic("another")


def test_bytes(tmp_path):
    with topics.open(tmp_path / "data", shards=2, max_total_bytes=10_000) as db:
        db.put_topic("full", cap_bytes=6000)
        for name in ("full", "a", "b", "c"):
            db.append(name, [{"data": "x" * 2000}])
        assert refused(lambda: db.append("d", [{"data": "x" * 3000}])) == ("throttled", "max_total_bytes", 10_000)
        db.delete("a", before_seq=2)
        wait_until(lambda: is_taken(db, ttl_ms=1), "the other shard to hear of it")
        wait_until(lambda: is_taken(db), "the end of that record")
        assert refused(lambda: db.append("d", [{"data": "x" * 3000}])) == ("throttled", "max_total_bytes", 10_000)


def test_routers(tmp_path):
    with topics.open(tmp_path / "data", max_routers=1) as db:
        db.put_router("one", "a", "b")
        assert refused(lambda: db.put_router("two", "a", "c")) == ("throttled", "max_routers", 1)
        db.put_router("one", "a", "b")


def test_what_only_a_server_counts_is_no_option(tmp_path):
    for name in ("max_connections", "max_watch_sessions", "max_sse_connections", "max_inflight_per_key"):
        with pytest.raises(TypeError, match="no option"):
            topics.open(tmp_path / "data", **{name: 1})
    assert not (tmp_path / "data").exists()
