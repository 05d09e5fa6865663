"""The calls of a database: the same answers and refusals as over HTTP."""

import subprocess
import sys
import threading
from math import inf

import pytest

import topics
from topics.embedded import Database
from topics.errors import TopicsError


@pytest.fixture
def db(tmp_path):
    with topics.open(tmp_path / "data") as opened:
        yield opened


def code_of(call) -> str:
    with pytest.raises(TopicsError) as caught:
        call()
    return caught.value.code


def test_records(db):
    answer = db.append("orders", [{"data": {"id": 1}, "tag": "a"}, {"data": None, "meta": {"k": "v"}}], node="n")
    assert (answer["seqs"], answer["created"]) == ([1, 2], True)
    first, second = db.read("orders", include_tags=True)
    assert (first["data"], first["$tag"], first["$node"]) == ({"id": 1}, "a", "n")
    assert (second["data"], second["meta"]) == (None, {"k": "v"})
    assert db.delete("orders", match="a")["deleted"] == 1
    assert [record["$seq"] for record in db.read("orders")] == [2]
    again = db.append("orders", [{"data": 3}], idempotency_key="once")
    assert db.append("orders", [{"data": 3}], idempotency_key="once")["seqs"] == again["seqs"] == [3]


def test_numbers_that_python_cannot_hold_are_infinite_and_hide_nothing(db):
    db.append("huge", [{"data": b"1e400"}, {"data": b"-" + b"9" * 5000}, {"data": 3}])
    assert [record["data"] for record in db.read("huge")] == [inf, -inf, 3]


def test_bytes_are_json_already_and_come_back_as_they_were(db):
    text = b'{"same":1, "same":2,  "big":123456789012345678901234567890}'
    db.append("raw", [{"data": text, "tag": "t"}, {"data": [1]}])
    first, second = db.read("raw", raw=True, include_tags=True)
    assert (first["data"], first["$seq"], first["$tag"]) == (text, 1, "t")
    assert second["data"] == b"[1]"
    assert next(db.follow("raw", raw=True))["data"] == text
    for text in (b"{no json", b"", b'1},{"data":2', b"1 2", b"[1"):
        assert code_of(lambda text=text: db.append("raw", [{"data": text}])) == "invalid_request"
    assert db.state("raw")["head_seq"] == 2


@pytest.mark.parametrize(
    "value",
    [float("nan"), float("inf"), {"x": b"abc"}, {1, 2}, bytearray(b"1"), "\ud800"],
    ids=["nan", "inf", "bytes", "set", "bytearray", "surrogate"],
)
def test_what_json_has_not_is_refused_not_changed(db, value):
    assert code_of(lambda: db.append("t", [{"data": 1}, {"data": value}])) == "invalid_request"
    assert code_of(lambda: db.append("t", [{"data": 1, "tag": b"t"}])) == "invalid_request"
    assert code_of(lambda: db.state("t")) == "topic_not_found"


def test_what_is_nested_too_deeply_is_refused(db):
    value: list[object] = []
    for _ in range(5000):
        value = [value]
    assert code_of(lambda: db.append("t", [{"data": value}])) == "invalid_request"
    assert code_of(lambda: db.append("t", [{"data": b"[" * 5000 + b"]" * 5000}])) == "invalid_request"
    assert code_of(lambda: db.state("t")) == "topic_not_found"


def test_a_record_needs_data(db):
    assert code_of(lambda: db.append("t", [1])) == "invalid_request"
    assert code_of(lambda: db.append("t", "text")) == "invalid_request"
    assert code_of(lambda: db.append("t", [{"tag": "t"}])) == "invalid_request"
    assert code_of(lambda: db.append("t", [{}])) == "invalid_request"


def test_names_that_mean_the_way_up_are_names(db):
    db.append("t", [{"data": 1}])
    assert code_of(lambda: db.remove_group("t", "..")) == "invalid_request"
    assert code_of(lambda: db.remove_topic("..")) == "invalid_request"
    assert db.state("t")["head_seq"] == 1


def test_topics(db):
    assert db.put_topic("t", ttl_ms=5000, durable=True)["config"]["durability"] == "fsync"
    db.put_topic("u")
    assert [topic["topic"] for topic in db.topics()] == ["t", "u"]
    assert [topic["topic"] for topic in db.topics("u")] == ["u"]
    db.append("u", [{"data": 1}])
    assert code_of(lambda: db.remove_topic("u", if_empty=True)) == "topic_not_empty"
    assert db.remove_topic("u")["deleted"]
    assert not db.remove_topic("u")["deleted"]


def test_many_topics_come_page_by_page(db):
    names = [f"t{number:03d}" for number in range(130)]
    for name in reversed(names):
        db.put_topic(name)
    assert [topic["topic"] for topic in db.topics()] == names


def test_jobs(db):
    db.put_topic("jobs", type="queue", lease_ms=60_000, max_deliveries=2, dead_letter="dead")
    db.append("jobs", [{"data": number} for number in range(4)])
    jobs = db.claim("jobs", "w", 3)
    assert [job.data for job in jobs] == [0, 1, 2]
    assert db.ack("jobs", "w", jobs[:1])["acked"] == 1
    assert db.nack("jobs", "w", jobs[1:2])["nacked"] == 1
    assert db.extend("jobs", "w", jobs[2:], lease_ms=90_000)["extended"]
    (again,) = db.claim("jobs", "w", 1)
    assert (again.data, again.deliveries) == (1, 2)
    db.nack("jobs", "w", [again])
    assert [job.data for job in db.claim("jobs", "w", 9)] == [3]
    assert next(db.follow("dead"))["data"] == 1
    assert db.state("jobs")["queue"]["dead_lettered"] == 1


def test_a_claim_waits_for_work(db):
    db.put_topic("jobs", type="queue")
    found: list = []
    worker = threading.Thread(target=lambda: found.extend(db.claim("jobs", "w", 1, wait_ms=30_000)))
    worker.start()
    db.append("jobs", [{"data": "late"}])
    worker.join(30)
    assert [job.data for job in found] == ["late"]


def test_routers(db):
    db.put_router("copy", "from", "to")
    db.append("from", [{"data": 1}])
    assert next(db.follow("to"))["data"] == 1
    assert code_of(lambda: db.put_router("back", "to", "from")) == "router_cycle"
    assert [router["router"] for router in db.routers()] == ["copy"]
    assert db.router("copy")["dest"] == "to"
    assert db.remove_router("copy")["deleted"]


def test_refusals_have_the_codes_of_the_api(db):
    assert code_of(lambda: db.diff("none")) == "topic_not_found"
    assert code_of(lambda: db.append("no/name", [{"data": 1}])) == "invalid_request"
    assert code_of(lambda: db.append("t", [{"data": object()}])) == "invalid_request"
    assert code_of(lambda: db.append("t", [])) == "invalid_request"
    assert code_of(lambda: db.append("t", [{"data": "x" * 2**20}])) == "record_too_large"
    assert code_of(lambda: db.claim("none", "w")) == "topic_not_found"
    db.put_topic("log")
    assert code_of(lambda: db.claim("log", "w")) == "not_a_queue"
    db.put_topic("small", cap_records=1, discard="reject")
    db.append("small", [{"data": 1}])
    assert code_of(lambda: db.append("small", [{"data": 1}])) == "topic_full"


def test_any_request_of_the_api_in_bytes(db):
    status, answer = db.exchange("POST", "/v0/topics/t", {"return_seqs": "false"}, b'{"records":[{"data":1}]}')
    assert status == 201
    assert b'"seqs"' not in answer
    status, answer = db.exchange("GET", "/v0/metrics")
    assert (status, b"\ntopics_topics 1\n" in answer) == (200, True)
    assert db.exchange("GET", "/v0/nothing")[0] == 404
    for method, path in (("POST", "/v0/watch"), ("GET", "/v0/topics/t/work")):
        status, answer = db.exchange(method, path)
        assert (status, b"streams need a server" in answer) == (404, True)


def test_settings_are_those_of_the_server(tmp_path):
    with topics.open(tmp_path / "a", max_record_bytes=100, max_limit=2) as db:
        assert code_of(lambda: db.append("t", [{"data": "x" * 100}])) == "record_too_large"
        db.append("t", [{"data": 1}] * 5)
        assert len(db.diff("t", limit=1000)["records"]) == 2
    with pytest.raises(TypeError, match="no option 'port'"):
        topics.open(tmp_path / "b", port=1)
    assert code_of(lambda: topics.open(tmp_path / "b", max_record_bytes=0)) == "invalid_request"
    assert code_of(lambda: topics.open(tmp_path / "b", cold_dir=tmp_path / "b")) == "invalid_request"
    assert not (tmp_path / "b").exists()


def test_after_close_there_is_nothing(tmp_path):
    db = topics.open(tmp_path / "data")
    assert isinstance(db, Database)
    db.append("t", [{"data": 1}])
    db.close()
    db.close()
    assert code_of(lambda: db.diff("t")) == "shutting_down"
    assert list(db.follow("t")) == []


def test_a_failure_in_the_block_still_closes(tmp_path):
    def work() -> None:
        with topics.open(tmp_path / "data") as db:
            db.append("t", [{"data": 1}])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    with topics.open(tmp_path / "data") as db:
        assert db.state("t")["count"] == 1


def test_a_program_that_opens_nothing_pays_for_nothing():
    code = "import sys, topics; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "topics" in loaded
    assert not {"trio", "msgspec", "httpx", "topics.embedded", "topics.errors"} & set(loaded)


def test_a_program_that_opens_one_needs_no_server():
    code = "import sys, topics.embedded; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "topics.shards.shard" in loaded
    assert not {"quart", "quart_trio", "hypercorn"} & set(loaded)
