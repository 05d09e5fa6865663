"""One database, many threads."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

import topics
from tests.embedded.program import program
from topics.errors import TopicsError


@pytest.fixture
def db(tmp_path):
    with topics.open(tmp_path / "data", shards=2) as opened:
        yield opened


def test_appends_of_many_threads_are_whole_and_in_each_ones_order(db):
    def write(number: int) -> list[int]:
        return [
            db.append("t", [{"data": [number, turn, part]} for part in range(3)])["first_seq"] for turn in range(40)
        ]

    with ThreadPoolExecutor(8) as threads:
        told = list(threads.map(write, range(8)))
    records = list(db.read("t"))
    assert [record["$seq"] for record in records] == list(range(1, 8 * 40 * 3 + 1))
    found = [record["data"] for record in records]
    for first in range(0, len(found), 3):
        number, turn, _ = found[first]
        assert found[first : first + 3] == [[number, turn, part] for part in range(3)]
    for number in range(8):
        turns = [turn for writer, turn, part in found if writer == number and part == 0]
        assert turns == list(range(40))
        assert told[number] == sorted(told[number])


def test_every_follower_sees_everything_once_and_ends_with_the_database(tmp_path):
    db = topics.open(tmp_path)
    db.put_topic("t")
    seen: list[list] = [[] for _ in range(5)]
    all_seen = [threading.Event() for _ in range(5)]

    def follow(number: int) -> None:
        for record in db.follow("t"):
            seen[number].append(record["data"])
            if len(seen[number]) == 100:
                all_seen[number].set()

    threads = [threading.Thread(target=follow, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    for value in range(100):
        db.append("t", [{"data": value}])
    assert all(event.wait(60) for event in all_seen)
    db.close()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert seen == [list(range(100))] * 5


def test_each_job_is_done_by_one_worker(db):
    db.put_topic("jobs", type="queue", lease_ms=600_000)
    db.append("jobs", [{"data": number} for number in range(200)])
    done: Counter[int] = Counter()
    lock = threading.Lock()

    def work(name: str) -> None:
        while jobs := db.claim("jobs", name, 7):
            with lock:
                done.update(job.data for job in jobs)
            db.ack("jobs", name, jobs)

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(work, [f"w{number}" for number in range(6)]))
    assert done == Counter(range(200))
    assert db.state("jobs")["queue"]["in_flight"] == 0


def test_a_close_lets_others_finish_and_refuses_the_rest(tmp_path):
    db = topics.open(tmp_path)
    acked: list[int] = []
    refused: list[str] = []
    begun = threading.Semaphore(0)

    def write(number: int) -> None:
        try:
            while True:
                acked.append(db.append("t", [{"data": number}])["last_seq"])
                begun.release()
        except TopicsError as error:
            refused.append(error.code)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        assert begun.acquire(timeout=60)
    db.close()
    for thread in threads:
        thread.join(30)
    assert refused == ["shutting_down"] * 4
    with topics.open(tmp_path) as db:
        assert {record["$seq"] for record in db.read("t")} >= set(acked)


def test_an_interrupted_wait_leaves_no_lease_behind(tmp_path):
    """Ctrl-C while a claim waits: the wait ends at the shard too, so the next job goes to somebody who is there."""
    code = """
import signal
db = topics.open(path)
db.put_topic("jobs", type="queue", lease_ms=3_600_000)
threading.Timer(0.5, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT)).start()
try:
    db.claim("jobs", "gone", 1, wait_ms=30_000)
    say("it was not")
except KeyboardInterrupt:
    say("interrupted")
db.append("jobs", [{"data": 1}])
say([job.data for job in db.claim("jobs", "here", 1, wait_ms=10_000)])
db.close()
"""
    with program(tmp_path, code) as interrupted:
        assert interrupted.hear() == "interrupted"
        assert interrupted.hear() == [1]
