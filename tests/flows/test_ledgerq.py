"""What LedgerQ's users do with it, done here (docs/compared.md): enqueue and dequeue, headers, lifetimes, seeking,
streaming, retries and dead letters, retention, compaction, syncs, and what a restart keeps.
"""

import threading
import time

import pytest

import topics
from tests.flows.conftest import code_of
from topics.client import Client
from topics.testing.server import Server, wait_until


@pytest.fixture
def queue(api, name):
    api.put_topic(name, type="queue", durable=True, lease_ms=600_000)
    return name


def dequeue(api, queue: str, most: int = 1) -> list:
    """LedgerQ's Dequeue and DequeueBatch: what is taken is consumed for good."""
    jobs = api.claim(queue, "consumer", most)
    if jobs:
        api.ack(queue, "consumer", jobs)
    return [job.data for job in jobs]


def test_enqueue_and_dequeue_in_order(api, queue):
    for value in ("a", "b"):
        api.append(queue, [{"data": value}])  # Enqueue
    api.append(queue, [{"data": value} for value in "cde"])  # EnqueueBatch, one sync
    assert dequeue(api, queue) == ["a"]
    assert dequeue(api, queue, 3) == ["b", "c", "d"]  # DequeueBatch
    assert dequeue(api, queue, 3) == ["e"]
    assert dequeue(api, queue) == []


def test_ids_only_grow(api, queue):
    first = api.append(queue, [{"data": 1}, {"data": 2}])
    dequeue(api, queue, 2)
    assert api.append(queue, [{"data": 3}])["first_seq"] == first["last_seq"] + 1


def test_headers(api, queue):
    api.append(queue, [{"data": "paid", "meta": {"content-type": "text/plain", "trace": "abc"}}])
    (job,) = api.claim(queue, "consumer")
    assert job.meta == {"content-type": "text/plain", "trace": "abc"}


def test_the_lifetime_of_one_message(api, queue):
    """EnqueueWithTTL: dequeues pass over what has expired."""
    api.append(queue, [{"data": "short-lived", "ttl_ms": 200}, {"data": "stays"}, {"data": "long", "ttl_ms": 600_000}])
    assert api.state(queue)["queue"]["ready"] == 3
    wait_until(lambda: api.state(queue)["count"] == 2, "it to expire")
    assert dequeue(api, queue, 9) == ["stays", "long"]


def test_the_lifetime_of_all_messages(api, name):
    api.put_topic(name, type="queue", ttl_ms=200)
    api.append(name, [{"data": "short-lived"}])
    wait_until(lambda: api.state(name)["count"] == 0, "it to expire")
    assert dequeue(api, name) == []


def test_seek_to_an_id_and_to_a_time(api, name):
    api.append(name, [{"data": value} for value in range(5)])
    assert [record["data"] for record in api.read(name, 3)] == [3, 4]  # SeekToMessageID
    last = list(api.read(name))[-1]["$ts"]
    wait_until(lambda: time.time() * 1000 > last + 2, "time to pass")
    then = int(time.time() * 1000)
    api.append(name, [{"data": "later"}])
    assert [record["data"] for record in api.read(name, from_ts=then)] == ["later"]  # SeekToTimestamp
    assert api.seek(name, then)["seq"] == 6


def test_stream(api, name):
    api.append(name, [{"data": "there"}])
    records = api.follow(name)
    assert next(records)["data"] == "there"
    writer = threading.Timer(0.05, lambda: api.append(name, [{"data": "new"}]))
    writer.start()
    assert next(records)["data"] == "new"
    writer.join()


def test_stats(api, queue):
    api.append(queue, [{"data": "x"}] * 5)
    api.claim(queue, "consumer", 2)
    stats = api.state(queue)
    assert (stats["count"], stats["next_seq"], stats["earliest_seq"]) == (5, 6, 1)
    assert stats["bytes"] > 0
    assert (stats["queue"]["ready"], stats["queue"]["in_flight"]) == (3, 2)


def test_failed_jobs_come_back_and_then_are_dead_letters(api, name):
    dead = f"{name}.dead"
    api.put_topic(name, type="queue", lease_ms=600_000, max_deliveries=3, dead_letter=dead)
    seq = api.append(name, [{"data": "poison"}, {"data": "fine"}])["first_seq"]
    for turn in range(3):
        (job,) = api.claim(name, "consumer")
        assert (job.data, job.deliveries) == ("poison", turn + 1)
        api.nack(name, "consumer", [job])
    assert dequeue(api, name) == ["fine"]
    letter = next(api.follow(dead))
    assert letter["data"] == "poison"
    assert letter["meta"]["$dead_letter_from"] == name  # dlq.original_msg_id, dlq.retry_count
    assert letter["meta"]["$dead_letter_src_seq"] == str(seq)
    assert letter["meta"]["$dead_letter_deliveries"] == "3"
    assert api.state(name)["queue"]["dead_lettered"] == 1


HIGH, MEDIUM, LOW = 9, 5, 1


def test_high_before_medium_before_low_each_in_order(api, queue):
    wanted = {1: HIGH, 2: MEDIUM, 3: LOW, 4: LOW, 5: HIGH, 6: MEDIUM, 7: HIGH}
    api.append(queue, [{"data": number, "priority": priority} for number, priority in wanted.items()])
    assert dequeue(api, queue, 2) == [1, 5]
    assert [dequeue(api, queue) for _ in range(5)] == [[7], [2], [6], [3], [4]]


def test_a_message_that_waits_is_promoted(api, name):
    api.put_topic(name, type="queue", priority_age_ms=50)
    api.append(name, [{"data": "old", "priority": LOW}])
    taken: list = []

    def overtaken() -> bool:
        api.append(name, [{"data": "new", "priority": MEDIUM}])
        taken.extend(dequeue(api, name))
        return "old" in taken

    wait_until(overtaken, "the old one to have its turn")
    assert taken[0] == "new"
    assert api.state(name)["count"] > 0  # newer ones are still there


def test_priorities_are_there_again_after_a_restart(tmp_path):
    with topics.open(tmp_path / "data", shards=1) as db:
        db.put_topic("jobs", type="queue", durable=True)
        db.append("jobs", [{"data": number, "priority": number % 3} for number in range(6)])
    with topics.open(tmp_path / "data") as db:
        assert dequeue(db, "jobs", 6) == [2, 5, 1, 4, 0, 3]


def test_the_reason_and_the_time_of_the_last_failure_and_requeueing(api, name):
    dead = f"{name}.dlq"
    api.put_topic(name, type="queue", max_deliveries=3, dead_letter=dead)
    api.append(name, [{"data": "poison", "meta": {"h": "1"}, "priority": HIGH}])
    for attempt in range(1, 4):
        (job,) = api.claim(name, "consumer")
        assert job.deliveries == attempt
        api.nack(name, "consumer", [job], reason=f"attempt {attempt}")
    assert api.claim(name, "consumer") == []
    (letter,) = api.diff(dead)["records"]
    meta = dict(letter["meta"])
    assert abs(int(meta.pop("$dead_letter_last_failure_ts")) - time.time() * 1000) < 60_000
    assert meta == {
        "h": "1",
        "$dead_letter_from": name,
        "$dead_letter_src_seq": "1",
        "$dead_letter_deliveries": "3",
        "$dead_letter_reason": "attempt 3",
    }
    assert api.redrive(dead, name)["moved"] == 1
    assert api.state(dead)["count"] == 0
    (job,) = api.claim(name, "consumer")
    assert (job.data, job.deliveries, job.priority, job.meta) == ("poison", 1, HIGH, {"h": "1"})
    assert api.state(name)["queue"] == {"ready": 0, "in_flight": 1, "dead_lettered": 1, "scheduled": 0}


def test_a_message_for_later(api, queue):
    api.append(queue, [{"data": "later", "delay_ms": 200}, {"data": "now"}])
    assert dequeue(api, queue, 2) == ["now"]
    assert api.state(queue)["queue"]["scheduled"] == 1
    wait_until(lambda: dequeue(api, queue) == ["later"], "its time")


def test_a_retry_of_the_writer_is_not_a_second_message(api, queue):
    """EnqueueWithDedup of a whole write: the second one is told where the first went."""
    first = api.append(queue, [{"data": "once"}], idempotency_key="order-1")
    again = api.append(queue, [{"data": "once"}], idempotency_key="order-1")
    assert (again["deduped"], again["seqs"]) == (True, first["seqs"])
    assert dequeue(api, queue, 9) == ["once"]


def test_a_message_that_was_sent_before_is_left_out(api, queue):
    """EnqueueWithDedup of one message: its id is remembered for a window, whatever it says."""
    first = api.append(queue, [{"data": "once", "dedup_key": "order-1"}])["last_seq"]
    again = api.append(queue, [{"data": "twice", "dedup_key": "order-1"}, {"data": "other", "dedup_key": "order-2"}])
    assert again["duplicates"] == [{"index": 0, "seq": first}]
    assert dequeue(api, queue, 9) == ["once", "other"]


def test_compression_is_transparent_and_saves_room(tmp_path):
    used = {}
    for way in ("none", "gzip"):
        with topics.open(tmp_path / way) as db:
            db.put_topic("t", compression=way)
            db.append("t", [{"data": {"message": "much the same " * 20, "n": n}} for n in range(500)])
            db.compact()
            assert [record["data"]["n"] for record in db.read("t")] == list(range(500))
        used[way] = sum(path.stat().st_size for path in (tmp_path / way).rglob("*.data"))
    assert used["gzip"] * 5 < used["none"]


def test_retention_by_age_size_and_count(api, name):
    api.put_topic(f"{name}.age", ttl_ms=200)  # MaxAge
    api.put_topic(f"{name}.size", cap_bytes=2000)  # MaxSize
    api.put_topic(f"{name}.count", cap_records=5)  # in records, where LedgerQ counts segments
    for kind in ("age", "size", "count"):
        for value in range(20):
            api.append(f"{name}.{kind}", [{"data": [value, "x" * 200]}])
    assert api.state(f"{name}.count")["count"] == 5
    assert 0 < api.state(f"{name}.size")["bytes"] <= 2000
    assert list(api.read(f"{name}.size", 19))[-1]["data"][0] == 19  # the newest always stays
    wait_until(lambda: api.state(f"{name}.age")["count"] == 0, "them to expire")
    gap = next(api.read(f"{name}.count", 1))
    assert gap["tombstone"]["reason"] == "cap"  # a reader that was too slow is told


def test_a_full_queue_can_refuse_instead(api, name):
    api.put_topic(name, type="queue", cap_records=2, discard="reject")
    api.append(name, [{"data": 1}, {"data": 2}])
    assert code_of(lambda: api.append(name, [{"data": 3}])) == "topic_full"
    assert dequeue(api, name, 9) == [1, 2]


def test_many_enqueue_and_dequeue_at_once(api, queue):
    taken: list[int] = []
    until = time.monotonic() + 120

    def produce(first: int) -> None:
        for value in range(first, first + 25):
            api.append(queue, [{"data": value}])

    def consume(node: str) -> None:
        while len(taken) < 100 and time.monotonic() < until:
            for job in api.claim(queue, node, 5, wait_ms=100):
                if api.ack(queue, node, [job])["acked"]:
                    taken.append(job.data)

    threads = [threading.Thread(target=produce, args=(first,)) for first in range(0, 100, 25)]
    threads += [threading.Thread(target=consume, args=(f"c{number}",)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sorted(taken) == list(range(100))


def test_sync_strategies(api, name):
    api.put_topic(f"{name}.auto", durability="fsync")  # AutoSync
    api.put_topic(f"{name}.buffered", durability="disk")  # the default: synced soon after
    assert api.append(f"{name}.auto", [{"data": 1}])["performance"]["fsync_ms"] > 0
    assert api.append(f"{name}.buffered", [{"data": 1}])["performance"]["fsync_ms"] == 0


def test_consumed_is_consumed_after_a_restart(tmp_path):
    """Read positions survive, over a clean end and over a crash, whoever opens the directory."""
    with topics.open(tmp_path / "data") as db:
        db.put_topic("jobs", type="queue", durable=True)
        db.append("jobs", [{"data": value} for value in range(6)])
        assert dequeue(db, "jobs", 2) == [0, 1]
    with Server(tmp_path, shards=1) as server:
        server.start().wait_ready()
        with Client(server.url) as client:
            assert dequeue(client, "jobs", 2) == [2, 3]
        server.kill_all()
        server.start().wait_ready()
        with Client(server.url) as client:
            assert dequeue(client, "jobs", 9) == [4, 5]
        assert server.stop() == 0


def test_compact_says_what_it_freed(tmp_path):
    with topics.open(tmp_path / "data", segment_max_events=100) as db:
        db.put_topic("jobs", type="queue")
        for _ in range(3):
            db.append("jobs", [{"data": "x" * 500}] * 100)
            db.compact()
        while dequeue(db, "jobs", 100):
            pass
        result = db.compact()
        assert result["segments_removed"] == 3
        assert result["bytes_freed"] > 3 * 100 * 500
