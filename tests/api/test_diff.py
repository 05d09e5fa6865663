"""Reading (API §3, §0.4, §4.5)."""

import socket
import threading
import time

import httpx
import pytest

from tests.api.instance import WAIT_S, envelope, wait_for


def fill(http, name, count=5, **fields):
    records = [{"data": n, "tag": f"t{n}", "node": f"n{n % 2}", "meta": {"k": str(n)}} for n in range(1, count + 1)]
    assert http.post(f"/v0/topics/{name}", json={"records": records, **fields}).status_code in (200, 201)


def diff(http, name, **body):
    answer = http.post(f"/v0/topics/{name}/diff", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_everything(http, name):
    fill(http, name, 2)
    body = diff(http, name)
    stamps = [record.pop("$ts") for record in body["records"]]
    assert all(isinstance(stamp, int) for stamp in stamps)
    assert stamps == sorted(stamps)
    assert body.pop("performance")["records_scanned"] == 2
    assert body == {
        "topic": name,
        "records": [
            {"$seq": 1, "$node": "n1", "data": 1, "meta": {"k": "1"}},
            {"$seq": 2, "$node": "n0", "data": 2, "meta": {"k": "2"}},
        ],
        "next_from_seq": 2,
        "head_seq": 2,
        "earliest_seq": 1,
        "caught_up": True,
        "tombstone": None,
        "lag": 0,
    }


def test_an_empty_body_means_the_defaults(http, name):
    fill(http, name)
    assert len(http.post(f"/v0/topics/{name}/diff").json()["records"]) == 5


def test_from_seq_and_limit(http, name):
    fill(http, name)
    body = diff(http, name, from_seq=1, limit=2)
    assert [record["$seq"] for record in body["records"]] == [2, 3]
    assert (body["next_from_seq"], body["caught_up"], body["lag"]) == (3, False, 2)
    assert diff(http, name, from_seq=5)["caught_up"] is True


def test_limit_is_clamped_and_zero_is_the_default(http, name):
    http.post(f"/v0/topics/{name}", json={"records": [{"data": 0}] * 1200})
    assert len(diff(http, name, limit=5000)["records"]) == 1000
    assert len(diff(http, name, limit=0)["records"]) == 256


def test_tags_and_meta(http, name):
    fill(http, name, 1)
    (record,) = diff(http, name, include_tags=True, include_meta=False)["records"]
    assert record["$tag"] == "t1"
    assert "meta" not in record
    assert "$tag" not in diff(http, name)["records"][0]


def test_absent_fields_are_absent(http, name):
    http.post(f"/v0/topics/{name}", json={"records": [{"data": None}]})
    (record,) = diff(http, name, include_tags=True)["records"]
    assert set(record) == {"$seq", "$ts", "data"}


@pytest.mark.parametrize(
    ("node", "left"), [("n1", [2, 4]), (["n0", "n1"], []), ("n", [1, 2, 3, 4, 5]), ([], [1, 2, 3, 4, 5])]
)
def test_own_records_are_left_out(http, name, node, left):
    fill(http, name)
    body = diff(http, name, node=node)
    assert [record["$seq"] for record in body["records"]] == left
    assert (body["next_from_seq"], body["caught_up"], body["tombstone"]) == (5, True, None)


def test_dedupe_node_false_shows_them(http, name):
    fill(http, name, config={"dedupe_node": False})
    assert len(diff(http, name, node="n1")["records"]) == 5


def test_max_batch_bytes_still_makes_progress(http, name):
    fill(http, name)
    body = diff(http, name, max_batch_bytes=1)
    assert len(body["records"]) == 1
    assert body["next_from_seq"] == 1


def test_tombstone_after_eviction(http, name):
    fill(http, name, 10, config={"cap_records": 4})
    body = diff(http, name, from_seq=2)
    gap = body["tombstone"]
    assert (gap["gap_from"], gap["gap_to"], gap["reason"]) == (3, 6, "cap")
    assert (gap["missed_estimate"], gap["earliest_seq"], gap["head_seq"]) == (4, 7, 10)
    assert [record["$seq"] for record in body["records"]] == [7, 8, 9, 10]


def test_deletion_is_silent(http, name):
    fill(http, name)
    http.post(f"/v0/topics/{name}/delete", json={"before_seq": 4})
    body = diff(http, name, from_seq=1)
    assert body["tombstone"] is None
    assert [record["$seq"] for record in body["records"]] == [4, 5]


def test_diff_never_creates(http, name):
    envelope(http.post(f"/v0/topics/{name}/diff", json={}), 404, "topic_not_found")


@pytest.mark.parametrize(
    "body",
    [{"from_seq": "1"}, {"from_seq": -1}, {"limit": 1.5}, {"include_tags": 1}, {"node": 1}, {"wait_ms": "1"}, []],
)
def test_type_errors(http, name, body):
    fill(http, name, 1)
    envelope(http.post(f"/v0/topics/{name}/diff", json=body), 400, "invalid_request")


def test_a_long_poll_wakes_when_a_record_comes(instance, http, name):
    http.put(f"/v0/topics/{name}")
    answers = []

    def poll():
        with httpx.Client(base_url=instance.url, timeout=WAIT_S) as client:
            answers.append(diff(client, name, wait_ms=15_000))

    waiting = threading.Thread(target=poll)
    waiting.start()
    wait_for(lambda: http.get(f"/v0/topics/{name}?touch=false").json()["last_read_ts"], "the poll's arrival")
    http.post(f"/v0/topics/{name}", json={"records": [{"data": "wake"}]})
    waiting.join(WAIT_S)
    assert answers[0]["records"][0]["data"] == "wake"
    assert answers[0]["performance"]["server_total_ms"] < 10_000


def test_a_long_poll_ends_by_itself(http, name):
    fill(http, name, 1)
    began = time.monotonic()
    body = diff(http, name, from_seq=1, wait_ms=100)
    assert time.monotonic() - began >= 0.09
    assert (body["records"], body["caught_up"], body["next_from_seq"]) == ([], True, 1)


def test_a_long_poll_with_something_to_give_does_not_wait(http, name):
    fill(http, name, 1)
    assert diff(http, name, wait_ms=30_000)["performance"]["server_total_ms"] < 5000


def test_a_huge_wait_is_clamped_not_refused(instance, name, http):
    fill(http, name, 1)
    with socket.create_connection(("127.0.0.1", instance.port)) as sock:
        body = b'{"from_seq":1,"wait_ms":99999999}'
        head = f"POST /v0/topics/{name}/diff HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        sock.sendall(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        sock.settimeout(0.2)
        with pytest.raises(TimeoutError):
            sock.recv(1)
