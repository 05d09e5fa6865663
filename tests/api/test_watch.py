"""Event streams over real HTTP: every frame and rule of API §7."""

import base64
import json
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import httpx
import pytest

from tests.api.events import EventStream, eventually, open_stream, watching
from tests.api.instance import envelope
from topics.testing.server import Server


def append(http, topic, *values, **fields):
    answer = http.post(f"/v0/topics/{topic}", json={"records": [{"data": value} for value in values], **fields})
    assert answer.status_code in (200, 201), answer.text
    return answer.json()


def cursor_of(event):
    text = event.id
    return json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))


def values_of(records):
    return [record["data"] for record in records]


class TestCreate:
    def test_says_where_each_topic_stands(self, http, name):
        append(http, name, 1, 2, 3)
        http.post(f"/v0/topics/{name}/delete", json={"before_seq": 2})
        answer = http.post("/v0/watch", json={"topics": {name: {"from_seq": 1}}}).json()
        assert answer["topics"] == {name: {"from_seq": 1, "head_seq": 3, "earliest_seq": 2}}
        assert answer["stream_url"] == f"/v0/watch/{answer['wid']}"
        assert answer["session_ttl_ms"] == 300_000
        assert answer["performance"]["server_total_ms"] >= 0
        assert answer["wid"].startswith("wid_")
        assert len(base64.urlsafe_b64decode(answer["wid"][4:] + "==")) == 16

    def test_tail_begins_at_the_head(self, http, name):
        append(http, name, 1, 2, 3)
        answer = http.post("/v0/watch", json={"topics": {name: {"tail": True, "from_seq": 1}}}).json()
        assert answer["topics"][name]["from_seq"] == 3

    @pytest.mark.parametrize(
        "body",
        [
            {},
            {"topics": {}},
            {"topics": []},
            {"topics": {"bad name": {}}},
            {"topics": {"$hidden": {}}},
            {"topics": {"a": {"from_seq": -1}}},
            {"topics": {"a": {"from_seq": "1"}}},
            {"topics": {"a": {"tail": 1}}},
            {"topics": {f"t{n}": {} for n in range(257)}},
            {"topics": {"a": {}}, "limit": -1},
            {"topics": {"a": {}}, "heartbeat_ms": "1"},
            {"topics": {"a": {}}, "consistency": "weak"},
            {"topics": {"a": {}}, "node": 7},
            {"topics": {"a": {}}, "cursor": "!!"},
        ],
    )
    def test_what_is_wrong_is_refused(self, http, body):
        answer = http.post("/v0/watch", json=body)
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "invalid_request"

    def test_an_unknown_topic_is_refused_or_left_out(self, http, name):
        append(http, name, 1)
        topics: dict[str, dict[str, int]] = {name: {}, f"{name}.nope": {}}
        answer = http.post("/v0/watch", json={"topics": topics})
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "topic_not_found"
        answer = http.post("/v0/watch?lenient=true", json={"topics": topics})
        assert answer.status_code == 200
        assert list(answer.json()["topics"]) == [name]
        stream = open_stream(http, answer.json()["wid"])
        assert stream.next("caught-up").data["topic"] == name
        stream.close()


class TestOpen:
    def test_headers_are_those_that_proxies_need(self, http, name):
        append(http, name, 1)
        with watching(http, {name: {}}) as stream:
            assert stream.status == 200
            assert stream.headers["content-type"] == "text/event-stream; charset=utf-8"
            assert stream.headers["cache-control"] == "no-store"
            assert stream.headers["connection"] == "keep-alive"
            assert stream.headers["x-accel-buffering"] == "no"
            assert stream.next() == ("retry", 2000, None)
            assert "retry" not in [event.name for event in stream.until(lambda event: event.name == "caught-up")]

    @pytest.mark.parametrize("accept", ["application/json", "text/html", "text/event-stream;q=0"])
    def test_accept_must_allow_an_event_stream(self, http, name, accept):
        append(http, name, 1)
        wid = http.post("/v0/watch", json={"topics": {name: {}}}).json()["wid"]
        stream = open_stream(http, wid, headers={"accept": accept})
        assert stream.status == 406
        assert stream.body()["error"]["code"] == "not_acceptable"

    def test_a_wid_must_be_one_and_be_known(self, http):
        for ask in (http.get, http.head):
            assert ask("/v0/watch/wid_").status_code == 400
            assert ask("/v0/watch/wid_" + "A" * 22).status_code == 404
        for wid in ("wid_doesnotexist", "wid_000000", "wid_x", "wid_" + "-" * 22, "wid_" + "_" * 128):
            envelope(http.get(f"/v0/watch/{wid}"), 404, "not_found")
            assert http.head(f"/v0/watch/{wid}").status_code == 404
        for wid in ("bogus", "wid-x", "WID_x", "wid_!", "wid_é", "wid_a.b", "wid_a%2Fb", "wid_" + "A" * 129):
            envelope(http.get(f"/v0/watch/{wid}"), 400, "invalid_request")
            assert http.head(f"/v0/watch/{wid}").status_code == 400

    def test_head_does_not_take_the_session(self, http, name):
        append(http, name, 1)
        with watching(http, {name: {}}) as stream:
            stream.next("caught-up")
            wid = http.post("/v0/watch", json={"topics": {name: {}}}).json()["wid"]
            assert http.head(f"/v0/watch/{wid}").headers["content-type"].startswith("text/event-stream")
            append(http, name, 2)
            assert values_of(stream.records(1)) == [2]

    def test_other_methods_are_told_what_the_path_takes(self, http):
        answer = http.delete("/v0/watch/wid_" + "A" * 22)
        assert answer.status_code == 405
        assert answer.headers["allow"] == "GET, HEAD"


class TestFrames:
    def test_records_then_caught_up_then_live(self, http, name):
        append(http, name, {"a": 1}, {"a": 2})
        with watching(http, {name: {"from_seq": 0}}) as stream:
            record = stream.next("record")
            assert values_of(record.data["records"]) == [{"a": 1}, {"a": 2}]
            assert (record.data["topic"], record.data["from_seq"], record.data["to_seq"]) == (name, 0, 2)
            assert record.data["head_seq"] == 2
            assert cursor_of(record) == {name: 2}
            caught_up = stream.next()
            assert caught_up.name == "caught-up"
            assert caught_up.data == {"topic": name, "head_seq": 2}
            assert cursor_of(caught_up) == {name: 2}
            append(http, name, {"a": 3})
            live = stream.next()
            assert live.name == "record"
            assert live.data["records"][0]["$seq"] == 3
            assert (live.data["from_seq"], live.data["to_seq"], live.data["head_seq"]) == (2, 3, 3)
            assert cursor_of(live) == {name: 3}

    def test_an_empty_topic_and_a_tail_are_caught_up_at_once(self, http, name):
        http.put(f"/v0/topics/{name}.empty")
        append(http, f"{name}.full", 1, 2)
        with watching(http, {f"{name}.empty": {}, f"{name}.full": {"tail": True}}) as stream:
            found = {event.data["topic"]: event.data["head_seq"] for event in (stream.next("caught-up") for _ in "12")}
            assert found == {f"{name}.empty": 0, f"{name}.full": 2}
            assert not [event for event in stream.seen if event.name == "record"]

    def test_one_id_holds_every_topic(self, http, name):
        topics = [f"{name}.{n}" for n in range(5)]
        for topic in topics:
            append(http, topic, topic)
        with watching(http, {topic: {} for topic in topics}) as stream:
            for _ in topics:
                last = stream.next("caught-up")
            assert cursor_of(last) == dict.fromkeys(topics, 1)

    def test_above_64_topics_the_id_is_a_token_that_still_resumes(self, http, name):
        topics = [f"{name}.{n}" for n in range(70)]
        for topic in topics:
            append(http, topic, 1)
        wid = http.post("/v0/watch", json={"topics": {topic: {} for topic in topics}}).json()["wid"]
        stream = open_stream(http, wid)
        for _ in topics:
            stream.next("caught-up")
        middle = stream.last_id
        append(http, topics[3], 2)
        append(http, topics[69], 2)
        assert sum(len(stream.next("record").data["records"]) for _ in "12") == 2
        stream.close()
        again = open_stream(http, wid, headers={"last-event-id": middle})
        found = {again.next("record").data["topic"] for _ in "12"}
        assert found == {topics[3], topics[69]}
        again.close()
        with watching(http, {topic: {} for topic in topics}, cursor=middle) as anew:
            assert {anew.next("record").data["topic"] for _ in "12"} == {topics[3], topics[69]}
        answer = http.post("/v0/watch", json={"topics": {topics[0]: {}}, "cursor": middle})
        assert (answer.status_code, answer.json()["error"]["detail"]["field"]) == (400, "cursor")

    def test_limit_and_bytes_bound_a_frame(self, http, name):
        append(http, name, *range(10))
        with watching(http, {name: {}}, limit=4) as stream:
            sizes = [
                len(event.data["records"]) for event in stream.until(lambda event: event.name == "caught-up")[1:-1]
            ]
            assert sizes == [4, 4, 2]
            append(http, name, *range(10))
            assert [len(stream.next("record").data["records"]) for _ in "123"] == [4, 4, 2]
        append(http, f"{name}.big", *["x" * 1000] * 5)
        with watching(http, {f"{name}.big": {}}, max_batch_bytes=1) as stream:
            assert [len(stream.next("record").data["records"]) for _ in range(5)] == [1] * 5

    def test_views(self, http, name):
        record = {"data": {"x": 1}, "tag": "t", "node": "n", "meta": {"k": "v"}}
        http.post(f"/v0/topics/{name}", json={"records": [record]})
        with watching(http, {name: {}}) as stream:
            (shown,) = stream.next("record").data["records"]
            assert shown.keys() == {"$seq", "$ts", "$node", "data", "meta"}
        with watching(http, {name: {}}, include_tags=True, include_meta=False, include_data=False) as stream:
            (shown,) = stream.next("record").data["records"]
            assert shown.keys() == {"$seq", "$ts", "$node", "$tag"}
            stream.next("caught-up")
            http.post(f"/v0/topics/{name}", json={"records": [record]})  # the same, live
            (shown,) = stream.next("record").data["records"]
            assert shown.keys() == {"$seq", "$ts", "$node", "$tag"}
        with watching(http, {name: {}}, include_data=False) as stream:
            assert stream.next("record").data["records"][0].keys() == {"$seq", "$ts", "$node"}
        with watching(http, {name: {}}, include_data=False, include_meta=True) as stream:
            assert stream.next("record").data["records"][0].keys() == {"$seq", "$ts", "$node", "meta"}

    def test_own_nodes_are_skipped_in_silence(self, http, name):
        append(http, name, 1, node="me")
        append(http, name, 2, node="you")
        with watching(http, {name: {}}, node="me") as stream:
            assert values_of(stream.records(1)) == [2]
            stream.next("caught-up")
            append(http, name, 3, node="me")
            append(http, name, 4)
            assert values_of(stream.records(1)) == [4]
            assert cursor_of(stream.seen[-1]) == {name: 4}

    def test_payloads_with_line_ends_arrive_whole(self, http, name):
        body = b'{"records":[{"data":{"a":\n[1,\r\n2,\r3]}}]}'
        with_line_ends = http.post(f"/v0/topics/{name}", content=body, headers={"content-type": "application/json"})
        assert with_line_ends.status_code == 201
        with watching(http, {name: {}}) as stream:
            assert values_of(stream.records(1)) == [{"a": [1, 2, 3]}]

    def test_a_deleted_topic_ends_alone(self, http, name):
        append(http, f"{name}.a", 1)
        append(http, f"{name}.b", 1)
        with watching(http, {f"{name}.a": {}, f"{name}.b": {}}) as stream:
            stream.next("caught-up"), stream.next("caught-up")
            http.delete(f"/v0/topics/{name}.a")
            gone = stream.next()
            assert gone.name == "topic-deleted"
            assert gone.data == {"topic": f"{name}.a", "head_seq": 1, "reason": "deleted"}
            append(http, f"{name}.b", 2)
            assert values_of(stream.records(1)) == [2]

    def test_heartbeats_come_when_nothing_else_does(self, http, name):
        append(http, name, 1)
        with watching(http, {name: {}}, heartbeat_ms=1) as stream:  # clamped to a second
            beat = stream.next(":")
            word, stamp = beat.data.split()
            assert word == "hb"
            assert int(stamp) > 1_700_000_000_000
            assert beat.id is None


class TestLoss:
    def test_a_cursor_below_the_floor_is_told_on_connect(self, http, name):
        http.put(f"/v0/topics/{name}", json={"cap_records": 3})
        append(http, name, *range(10))
        with watching(http, {name: {"from_seq": 2}}) as stream:
            gap = stream.next("tombstone")
            assert gap.data["reason"] == "from_seq_too_old"
            assert (gap.data["gap_from"], gap.data["gap_to"]) == (3, 7)
            assert (gap.data["earliest_seq"], gap.data["head_seq"]) == (8, 10)
            assert (gap.data["$type"], gap.data["$seq"]) == ("tombstone", 8)
            assert cursor_of(gap) == {name: 7}
            record = stream.next()
            assert [r["$seq"] for r in record.data["records"]] == [8, 9, 10]

    def test_a_batch_larger_than_the_cap_leaves_a_gap_live(self, http, name):
        http.put(f"/v0/topics/{name}", json={"cap_records": 3})
        with watching(http, {name: {}}) as stream:
            stream.next("caught-up")
            append(http, name, *range(10))
            gap = stream.next("tombstone", "record")
            assert gap.name == "tombstone"
            assert (gap.data["reason"], gap.data["gap_from"], gap.data["gap_to"]) == ("cap", 1, 7)
            assert [r["$seq"] for r in stream.next("record").data["records"]] == [8, 9, 10]

    def test_what_was_deleted_is_skipped_in_silence(self, http, name):
        append(http, name, *range(5))
        http.post(f"/v0/topics/{name}/delete", json={"before_seq": 4})
        with watching(http, {name: {"from_seq": 0}}) as stream:
            assert [r["$seq"] for r in stream.next("record", "tombstone").data["records"]] == [4, 5]

    def test_another_life_of_the_topic_is_told(self, http, name):
        append(http, name, 1, 2, 3)
        wid = http.post("/v0/watch", json={"topics": {name: {"tail": True}}}).json()["wid"]
        http.delete(f"/v0/topics/{name}")
        append(http, name, *"abcd")
        stream = open_stream(http, wid)
        gap = stream.next("tombstone", "record")
        assert gap.name == "tombstone"
        assert (gap.data["reason"], gap.data["gap_from"], gap.data["gap_to"]) == ("recreated", 1, 4)
        assert gap.data["$seq"] == 1
        assert values_of(stream.records(4)) == list("abcd")
        stream.close()


class TestResume:
    def test_the_session_goes_on_behind_what_was_sent(self, http, name):
        append(http, name, 1, 2)
        wid = http.post("/v0/watch", json={"topics": {name: {}}}).json()["wid"]
        stream = open_stream(http, wid)
        stream.next("caught-up")
        stream.close()
        append(http, name, 3)
        again = open_stream(http, wid)
        assert values_of(again.records(1)) == [3]
        again.close()

    def test_an_id_rewinds_but_never_skips(self, http, name):
        append(http, name, 1)
        wid = http.post("/v0/watch", json={"topics": {name: {}}}).json()["wid"]
        stream = open_stream(http, wid)
        early = stream.next("record").id
        append(http, name, 2)
        assert values_of(stream.records(1)) == [2]
        stream.close()
        again = open_stream(http, wid, headers={"last-event-id": early})
        assert values_of(again.records(1)) == [2]
        again.next("caught-up")
        again.close()
        append(http, name, 3)
        ahead = base64.urlsafe_b64encode(json.dumps({name: 3}).encode()).decode().rstrip("=")
        last = open_stream(http, wid, headers={"last-event-id": ahead})
        assert values_of(last.records(1)) == [3]
        last.close()

    def test_an_id_that_is_none_is_ignored(self, http, name):
        append(http, name, 1)
        wid = http.post("/v0/watch", json={"topics": {name: {}}}).json()["wid"]
        stream = open_stream(http, wid, headers={"last-event-id": "what?"})
        assert values_of(stream.records(1)) == [1]
        stream.close()

    def test_a_cursor_begins_a_new_session_where_another_stood(self, http, name):
        append(http, name, 1, 2, 3)
        with watching(http, {name: {}}, limit=2) as stream:
            cursor = stream.next("record").id
        with watching(http, {name: {}}, cursor=cursor) as stream:
            assert values_of(stream.records(1)) == [3]

    def test_a_second_stream_takes_the_session_over(self, http, name):
        append(http, name, 1)
        wid = http.post("/v0/watch", json={"topics": {name: {}}}).json()["wid"]
        first = open_stream(http, wid)
        first.next("caught-up")
        second = open_stream(http, wid)
        last = first.rest()[-1]
        assert (last.name, last.data["code"]) == ("error", 409)
        assert first.ended
        second.next("caught-up")
        append(http, name, 2)
        assert values_of(second.records(1)) == [2]
        assert not [event for event in second.seen[:-1] if event.name == "record"]
        second.close()


class TestConsistency:
    @pytest.mark.parametrize("durability", ["fsync", "disk", "memory", "ephemeral"])
    @pytest.mark.parametrize("consistency", ["strong", "eventual"])
    def test_every_class_is_delivered_either_way(self, http, name, durability, consistency):
        http.put(f"/v0/topics/{name}", json={"durability": durability})
        append(http, name, 0)
        with watching(http, {name: {}}, consistency=consistency) as stream:
            for value in range(1, 20):
                append(http, name, value)
            assert values_of(stream.records(20)) == list(range(20))

    def test_strong_waits_for_the_sync_and_eventual_does_not(self, tmp_path):
        """Every sync takes a while; a write to a `disk` topic is acked before it."""
        with Server(tmp_path, shards=1, gateways=1, failpoints="wal.sync=pause:600") as server, ExitStack() as stack:
            server.start().wait_ready()
            http = stack.enter_context(httpx.Client(base_url=server.url, timeout=60))
            append(http, "t", 0)
            streams = {}
            for how in ("strong", "eventual"):
                streams[how] = stack.enter_context(watching(http, {"t": {}}, consistency=how))
                streams[how].next("caught-up")
            began = time.monotonic()
            append(http, "t", 1)
            arrived = {}

            def receive(how):
                assert values_of(streams[how].records(1)) == [1]
                arrived[how] = time.monotonic() - began

            with ThreadPoolExecutor() as pool:
                list(pool.map(receive, streams))
            assert arrived["eventual"] < arrived["strong"]
            assert arrived["strong"] >= 0.6


def test_many_streams_see_the_same(http, name):
    append(http, name, 0)
    streams: list[EventStream] = []
    for _ in range(20):
        wid = http.post("/v0/watch", json={"topics": {name: {}}}).json()["wid"]
        streams.append(open_stream(http, wid))
    for value in range(1, 50):
        append(http, name, value)
    for stream in streams:
        assert values_of(stream.records(50)) == list(range(50))
        stream.close()


def test_streams_are_counted_while_they_are_open(http, name):
    def count():
        return http.get("/v0/metrics", headers={"accept": "application/json"}).json()["topics_sse_connections"]

    append(http, name, 1)
    before = count()
    with watching(http, {name: {}}) as stream:
        stream.next("caught-up")
        assert eventually(lambda: count() == before + 1)
    assert eventually(lambda: count() == before)
