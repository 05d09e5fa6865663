"""Beginning at a time instead of a seq: diff, streams, sockets, and the route that says where a time is."""

import time

import pytest

from tests.api.events import watching
from tests.api.instance import envelope, wait_for
from tests.api.sockets import Socket


def append(http, topic, *values, **fields):
    answer = http.post(f"/v0/topics/{topic}", json={"records": [{"data": value} for value in values], **fields})
    assert answer.status_code in (200, 201), answer.text
    return answer.json()


def diff(http, name, **body):
    answer = http.post(f"/v0/topics/{name}/diff", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def seek(http, name, ts):
    answer = http.get(f"/v0/topics/{name}/seek", params={"ts": ts})
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert body.pop("performance")["server_total_ms"] >= 0
    return body


def fill(http, name, batches=3, **config):
    """Batches of two records, each at a time of its own; those times."""
    http.put(f"/v0/topics/{name}", json=config)
    times: list[int] = []
    for batch in range(batches):
        wait_for(lambda: not times or time.time() * 1000 > times[-1] + 2, "a later millisecond")
        append(http, name, 2 * batch + 1, 2 * batch + 2)
        times.append(
            diff(http, name, from_seq=http.get(f"/v0/topics/{name}").json()["head_seq"] - 1)["records"][0]["$ts"]
        )
    assert len(set(times)) == batches
    return times


def data_of(records):
    return [record["data"] for record in records]


def test_a_diff_from_each_time(http, name):
    times = fill(http, name)
    for index, ts in enumerate(times):
        assert data_of(diff(http, name, from_ts=ts)["records"]) == list(range(2 * index + 1, 7))
        assert data_of(diff(http, name, from_ts=ts + 1)["records"]) == list(range(2 * index + 3, 7))
    page = diff(http, name, from_ts=0, limit=4)
    assert (data_of(page["records"]), page["next_from_seq"], page["tombstone"]) == ([1, 2, 3, 4], 4, None)


def test_a_time_to_come_is_the_head(http, name):
    times = fill(http, name)
    page = diff(http, name, from_ts=times[-1] + 3_600_000)
    assert (page["records"], page["next_from_seq"], page["caught_up"], page["tombstone"]) == ([], 6, True, None)


def test_a_long_poll_from_a_time_gets_what_comes(http, name):
    times = fill(http, name, 1)
    answer = http.post(f"/v0/topics/{name}/diff", json={"from_ts": times[0], "wait_ms": 5000}).json()
    assert data_of(answer["records"]) == [1, 2]
    assert diff(http, name, from_ts=times[0] + 1, wait_ms=20)["next_from_seq"] == 2


def test_where_a_time_is(http, name):
    times = fill(http, name)
    assert seek(http, name, times[1]) == {
        "topic": name,
        "ts": times[1],
        "seq": 3,
        "from_seq": 2,
        "head_seq": 6,
        "earliest_seq": 1,
    }
    assert seek(http, name, 0)["seq"] == 1
    assert seek(http, name, times[-1] + 1)["seq"] == 7
    assert seek(http, name, times[-1] + 3_600_000)["from_seq"] == 6


def test_deleted_records_are_passed_over_silently(http, name):
    times = fill(http, name)
    http.post(f"/v0/topics/{name}/delete", json={"before_seq": 4})
    found = seek(http, name, times[1])
    assert found["seq"] == 4
    page = diff(http, name, from_ts=times[1])
    assert (data_of(page["records"]), page["tombstone"]) == ([4, 5, 6], None)


def test_what_was_evicted_there_is_told(http, name):
    times = fill(http, name, 3, cap_records=3)
    page = diff(http, name, from_ts=times[0])
    assert data_of(page["records"]) == [4, 5, 6]
    gap = page["tombstone"]
    assert (gap["gap_from"], gap["gap_to"], gap["reason"], gap["missed_estimate"]) == (1, 3, "cap", 3)
    assert seek(http, name, times[0])["seq"] == 4
    assert diff(http, name, from_ts=times[2])["tombstone"] is None


def test_streams_begin_at_a_time(http, name):
    times = fill(http, name)
    with watching(http, {name: {"from_ts": times[1]}}) as stream:
        assert data_of(stream.records(4)) == [3, 4, 5, 6]
        append(http, name, 7)
        assert data_of(stream.records(1)) == [7]
    answer = http.post("/v0/watch", json={"topics": {name: {"from_ts": times[1]}}}).json()
    assert answer["topics"][name] == {"from_seq": 2, "head_seq": 6 + 1, "earliest_seq": 1}
    answer = http.post("/v0/watch", json={"topics": {name: {"from_ts": times[1], "tail": True}}}).json()
    assert answer["topics"][name]["from_seq"] == 7


def test_a_stream_is_told_of_what_was_evicted_there(http, name):
    times = fill(http, name, 3, cap_records=3)
    with watching(http, {name: {"from_ts": times[0]}}) as stream:
        gap = stream.next("tombstone").data
        assert (gap["gap_from"], gap["gap_to"], gap["reason"]) == (1, 3, "from_seq_too_old")
        assert data_of(stream.records(3)) == [4, 5, 6]


def test_sockets_begin_at_a_time(http, instance, name):
    times = fill(http, name)
    with Socket(instance.port) as ws:
        for place in ({"topic": name, "from_ts": times[2]}, {"topics": {name: {"from_ts": times[2]}}}):
            answer = ws.ask("subscribe", **place)
            assert answer["topics"][name]["from_seq"] == 4
            assert data_of(ws.records(2)) == [5, 6]


@pytest.mark.parametrize("ts", [-1, 2**64, "soon", 1.5, True])
def test_what_is_no_time(http, name, ts):
    fill(http, name, 1)
    error = envelope(http.post(f"/v0/topics/{name}/diff", json={"from_ts": ts}), 400, "invalid_request")
    assert error["detail"]["field"] == "from_ts"
    error = envelope(http.post("/v0/watch", json={"topics": {name: {"from_ts": ts}}}), 400, "invalid_request")
    error = envelope(http.get(f"/v0/topics/{name}/seek", params={"ts": str(ts)}), 400, "invalid_request")
    assert error["detail"] == {"field": "ts"}


def test_a_seq_and_a_time_are_one_too_many(http, name):
    fill(http, name, 1)
    both = {"from_seq": 0, "from_ts": 0}
    for path, body in ((f"/v0/topics/{name}/diff", both), ("/v0/watch", {"topics": {name: both}})):
        error = envelope(http.post(path, json=body), 400, "invalid_request")
        assert error["detail"] == {"field": "from_ts"}
        assert "one of them" in error["message"]


def test_seek_needs_a_time_and_a_topic(http, name):
    assert envelope(http.get(f"/v0/topics/{name}/seek"), 400, "invalid_request")["detail"] == {"field": "ts"}
    envelope(http.get(f"/v0/topics/{name}/seek", params={"ts": 0}), 404, "topic_not_found")
    envelope(http.post(f"/v0/topics/{name}/diff", json={"from_ts": 0}), 404, "topic_not_found")
