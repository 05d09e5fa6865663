"""Consumer groups over HTTP: cursors that the server keeps, one active consumer each, lag everywhere it is shown."""

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import httpx
import pytest

from tests.api.instance import wait_for
from topics import limits
from topics.testing.server import Server


class Group:
    def __init__(self, http: httpx.Client, topic: str, name: str = "g") -> None:
        self.http = http
        self.topic = f"/v0/topics/{topic}"
        self.path = f"{self.topic}/groups/{name}"

    def append(self, *data: Any) -> list[int]:
        answer = self.http.post(self.topic, json={"records": [{"data": one} for one in data]})
        assert answer.is_success, answer.text
        seqs: list[int] = answer.json()["seqs"]
        return seqs

    def post(self, what: str, **body: Any) -> dict[str, Any]:
        answer = self.http.post(f"{self.path}/{what}", json=body)
        assert answer.status_code == 200, answer.text
        assert answer.json()["performance"]["server_total_ms"] >= 0
        fields: dict[str, Any] = answer.json()
        return fields

    def fetch(self, **body: Any) -> list[int]:
        return [record["$seq"] for record in self.post("fetch", **body)["records"]]

    def ack(self, seq: int, **body: Any) -> int:
        cursor: int = self.post("ack", seq=seq, **body)["cursor_seq"]
        return cursor

    def refused(self, what: str, status: int, **body: Any) -> dict[str, Any]:
        return error_of(self.http.post(f"{self.path}/{what}", json=body), status)

    def state(self) -> dict[str, Any]:
        answer = self.http.get(self.path)
        assert answer.status_code == 200, answer.text
        fields: dict[str, Any] = answer.json()
        return fields


@pytest.fixture
def group(http, name) -> Group:
    made = Group(http, name)
    assert http.put(made.topic, json={}).status_code == 201
    return made


def error_of(answer: httpx.Response, status: int) -> dict[str, Any]:
    """The error of a refusal."""
    assert answer.status_code == status, answer.text
    error: dict[str, Any] = answer.json()["error"]
    assert error["message"]
    return error


def in_background(work: Callable[[], Any]) -> Callable[[], Any]:
    """Run it beside the test; call the result to wait for what it returned."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()), daemon=True)
    thread.start()

    def result() -> Any:
        thread.join(20)
        assert found, "it has not ended"
        return found[0]

    return result


# --- cursors ----------------------------------------------------------------------------------------------------------


def test_a_fetch_does_not_move_and_an_ack_does(group):
    group.append("a", "b", "c")
    first = group.post("fetch", limit=2)
    assert [record["data"] for record in first["records"]] == ["a", "b"]
    assert (first["group"], first["cursor_seq"], first["next_from_seq"], first["caught_up"]) == ("g", 0, 2, False)
    assert first == group.post("fetch", limit=2) | {"performance": first["performance"]}
    acked = group.post("ack", seq=first["next_from_seq"])
    assert (acked["cursor_seq"], acked["moved"], acked["lag"], acked["head_seq"]) == (2, True, 1, 3)
    assert group.fetch() == [3]
    assert group.state()["cursor_seq"] == 2


def test_a_fetch_is_a_diff_from_the_cursor(group):
    """Field by field, `lag` as well; then the group's own two."""
    group.append(*range(5))
    group.fetch()
    group.ack(1)
    diff = group.http.post(f"{group.topic}/diff", json={"from_seq": 1, "limit": 2}).json()
    fetched = group.post("fetch", limit=2)
    assert fetched == diff | {"group": "g", "cursor_seq": 1, "performance": fetched["performance"]}
    assert (fetched["lag"], group.state()["lag"]) == (2, 4)


def test_an_ack_never_moves_back_nor_beyond_the_head(group):
    group.append(*range(5))
    group.fetch()
    assert group.ack(4) == 4
    assert group.post("ack", seq=2) | {"performance": 0} == {
        "topic": group.topic.rpartition("/")[2], "group": "g", "cursor_seq": 4, "moved": False, "head_seq": 5, "lag": 1,
        "performance": 0,
    }  # fmt: skip
    error = group.refused("ack", 400, seq=6)
    assert (error["code"], error["detail"]) == ("invalid_request", {"field": "seq", "head_seq": 5})
    assert group.state()["cursor_seq"] == 4


@pytest.mark.parametrize(("start", "seen"), [("earliest", [1, 2]), ("latest", []), (1, [2]), (None, [1, 2])])
def test_where_a_first_fetch_begins(group, start, seen):
    group.append("a", "b")
    body = {} if start is None else {"from": start}
    assert group.fetch(**body) == seen
    group.append("c")
    assert group.fetch(**{"from": "earliest"}) == [*seen, 3]  # it is there by now: `from` counts for nothing


@pytest.mark.parametrize("wrong", [-1, {"ts": -1}])
def test_a_place_that_cannot_be_is_refused_whether_the_group_is_there_or_not(group, wrong):
    for _ in range(2):
        assert group.refused("fetch", 400, **{"from": wrong})["detail"]["field"] == "from"
        assert error_of(group.http.put(group.path, json={"from": wrong}), 400)["detail"]["field"] == "from"
        group.http.put(group.path)


def test_a_put_makes_one_once(group):
    group.append("a", "b")
    made = group.http.put(group.path, json={"from": "latest"})
    assert (made.status_code, made.json()["created"], made.json()["cursor_seq"]) == (201, True, 2)
    again = group.http.put(group.path, json={"from": "earliest"})
    assert (again.status_code, again.json()["created"], again.json()["cursor_seq"]) == (200, False, 2)
    assert group.http.put(f"{group.topic}/groups/h").json()["cursor_seq"] == 0


def test_a_seek_goes_anywhere(group):
    group.append("a")
    time.sleep(0.01)  # so that the times differ
    (second,) = group.append("b")
    ts = group.http.post(f"{group.topic}/diff", json={}).json()["records"][1]["$ts"]
    group.append("c")
    group.fetch()
    for to, cursor in (("latest", 3), ("earliest", 0), (2, 2), ({"ts": ts}, second - 1), ({"ts": 0}, 0)):
        assert group.post("seek", to=to)["cursor_seq"] == cursor
        assert group.state()["cursor_seq"] == cursor
    assert group.post("seek", to={"ts": 2**62})["cursor_seq"] == 3
    assert group.refused("seek", 400, to=4)["detail"]["field"] == "to"
    assert group.refused("seek", 400, to="middle")["code"] == "invalid_request"
    assert group.refused("seek", 400, to={"when": 1})["code"] == "invalid_request"
    assert group.refused("seek", 400, to=-1)["detail"]["field"] == "to"
    assert group.state()["cursor_seq"] == 3


def test_what_retention_took_is_a_tombstone_until_it_is_acked(http, name):
    group = Group(http, name)
    http.put(group.topic, json={"cap_records": 3})
    group.append(*range(3))
    assert group.fetch() == [1, 2, 3]
    group.append(*range(4))
    for _ in range(2):
        page = group.post("fetch")
        gap = page["tombstone"]
        assert (gap["gap_from"], gap["gap_to"], gap["reason"], page["cursor_seq"]) == (1, 4, "cap", 0)
        assert [record["$seq"] for record in page["records"]] == [5, 6, 7]
    group.ack(4)
    assert group.post("fetch")["tombstone"] is None


def test_the_options_of_a_diff(group):
    body = {"records": [{"data": "x" * 400, "tag": "t", "node": node, "meta": {"k": "v"}} for node in "abc"]}
    group.http.post(group.topic, json=body)
    assert group.fetch(max_batch_bytes=500) == [1]
    assert group.fetch(node="a") == [2, 3]
    (record,) = group.post("fetch", limit=1, include_tags=True, include_meta=False, include_data=False)["records"]
    assert record == {"$seq": 1, "$ts": record["$ts"], "$node": "a", "$tag": "t"}
    assert group.refused("fetch", 400, from_seq=2)["detail"]["field"] == "from_seq"


def test_the_cursor_of_records_of_ones_own_goes_past_them(group):
    group.http.post(group.topic, json={"records": [{"data": 1, "node": "me"}]})
    page = group.post("fetch", node="me", wait_ms=50)
    assert (page["records"], page["next_from_seq"]) == ([], 1)
    assert group.ack(page["next_from_seq"]) == 1


# --- waiting ----------------------------------------------------------------------------------------------------------


def test_a_fetch_waits(group):
    group.fetch()
    result = in_background(lambda: group.fetch(wait_ms=20_000))
    group.append("x")
    assert result() == [1]


def test_a_seek_wakes_who_waits(group):
    group.append("a", "b")
    group.fetch(**{"from": "latest"}, consumer="one")
    result = in_background(lambda: group.fetch(wait_ms=20_000, consumer="one"))
    group.post("seek", to=1)
    assert result() == [2]


def test_a_removed_group_wakes_who_waits(group):
    result = in_background(lambda: group.http.post(f"{group.path}/fetch", json={"wait_ms": 20_000}))
    wait_for(lambda: group.http.delete(group.path).json()["deleted"], "the fetch to make the group")
    assert error_of(result(), 404)["code"] == "group_not_found"


# --- consumers --------------------------------------------------------------------------------------------------------


def test_a_new_consumer_takes_over_and_goes_on_where_the_other_was(group):
    group.append(*range(4))
    assert group.fetch(consumer="old") == [1, 2, 3, 4]
    group.ack(2, consumer="old")
    assert group.fetch(consumer="new") == [3, 4]
    assert group.state()["consumer"] == "new"
    for what, body in (("fetch", {}), ("ack", {"seq": 3}), ("seek", {"to": "latest"})):
        error = group.refused(what, 409, consumer="old", **body)
        assert (error["code"], error["detail"]) == (
            "taken_over",
            {"group": "g", "consumer": "old", "active": "new"},
        )
    assert group.state()["cursor_seq"] == 2
    assert group.ack(3, consumer="new") == 3


def test_who_was_taken_over_from_can_take_it_back_on_purpose(group):
    group.fetch(consumer="a")
    group.fetch(consumer="b")
    group.fetch(consumer="a", take_over=True)
    assert group.refused("fetch", 409, consumer="b")["code"] == "taken_over"
    assert group.state()["consumer"] == "a"
    assert group.refused("fetch", 400, take_over=True)["detail"]["field"] == "consumer"


def test_a_waiting_consumer_is_told_at_once(group):
    group.fetch(consumer="old")
    body = {"wait_ms": 30_000, "consumer": "old"}
    result = in_background(lambda: group.http.post(f"{group.path}/fetch", json=body, timeout=60))
    began = time.monotonic()
    group.fetch(consumer="new")
    assert error_of(result(), 409)["code"] == "taken_over"
    assert time.monotonic() - began < 20


def test_a_call_without_a_consumer_is_nobodys(group):
    group.append("a", "b")
    group.fetch(consumer="one")
    assert group.fetch() == [1, 2]
    assert group.ack(1) == 1
    assert group.state()["consumer"] == "one"
    assert group.fetch(consumer="one") == [2]


def test_a_refused_call_takes_nothing_over(group):
    group.fetch(consumer="one")
    group.refused("ack", 400, seq=9, consumer="one")
    group.refused("fetch", 400, limit=-1, consumer="two")
    assert group.state()["consumer"] == "one"


def test_only_a_reader_takes_over(group):
    """However many have had it since: an ack of somebody else would move the group under the one that reads."""
    group.append(*range(4))
    consumers = [f"c{n}" for n in range(limits.GROUP_LEFT_MAX + 3)]
    for consumer in consumers:
        group.fetch(consumer=consumer)
    for consumer in (*consumers[:-1], "never-seen"):
        for what, body in (("ack", {"seq": 3}), ("seek", {"to": "latest"})):
            assert group.refused(what, 409, consumer=consumer, **body)["detail"]["active"] == consumers[-1]
    assert (group.state()["cursor_seq"], group.state()["consumer"]) == (0, consumers[-1])
    assert group.ack(2, consumer=consumers[-1]) == 2


def test_a_group_that_nobody_reads_is_of_whoever_acks_first(group):
    group.append("a", "b")
    group.fetch()
    assert group.ack(1, consumer="one") == 1
    assert group.state()["consumer"] == "one"
    assert group.refused("seek", 409, to=0, consumer="two")["code"] == "taken_over"


# --- what there is ----------------------------------------------------------------------------------------------------


def test_lag_is_shown_everywhere(group, name):
    group.append(*range(7))
    group.fetch(consumer="c1")
    group.ack(4)
    group.http.put(f"{group.topic}/groups/other", json={"from": "latest"})
    state = group.state()
    assert state.pop("created_ts") <= state.pop("updated_ts")
    assert state.pop("performance")
    assert state == {
        "topic": name, "group": "g", "cursor_seq": 4, "head_seq": 7, "earliest_seq": 1, "lag": 3, "consumer": "c1",
    }  # fmt: skip
    listed = group.http.get(f"{group.topic}/groups").json()
    assert [(one["group"], one["lag"]) for one in listed["groups"]] == [("g", 3), ("other", 0)]
    assert group.http.get(group.topic).json()["groups"] == {
        "g": {"cursor_seq": 4, "lag": 3, "consumer": "c1"},
        "other": {"cursor_seq": 7, "lag": 0, "consumer": None},
    }
    text = group.http.get("/v0/metrics").text
    assert f'topics_group_lag{{topic="{name}",group="g"}} 3' in text
    assert f'topics_group_cursor_seq{{topic="{name}",group="other"}} 7' in text
    assert "topics_group_metrics_truncated 0" in text


def test_a_topic_without_groups_does_not_speak_of_them(group):
    assert "groups" not in group.http.get(group.topic).json()
    assert group.http.get(f"{group.topic}/groups").json()["groups"] == []


def test_a_removed_group_is_forgotten(group):
    group.append("a", "b")
    group.fetch(consumer="one")
    group.ack(2)
    assert group.http.delete(group.path).json()["deleted"] is True
    assert group.http.delete(group.path).json()["deleted"] is False
    assert error_of(group.http.get(group.path), 404)["code"] == "group_not_found"
    assert group.refused("ack", 404, seq=1)["code"] == "group_not_found"
    assert group.refused("seek", 404, to=1)["code"] == "group_not_found"
    assert group.fetch(consumer="two") == [1, 2]
    assert group.fetch(consumer="one") == [1, 2]  # nobody was taken over from in this one: it is an id like any other


def test_a_topic_takes_its_groups_along(group):
    group.append("a", "b", "c")
    group.fetch()
    group.ack(3)
    group.http.delete(group.topic)
    assert error_of(group.http.get(group.path), 404)["code"] == "topic_not_found"
    group.append("z")
    assert group.http.get(f"{group.topic}/groups").json()["groups"] == []
    assert group.fetch() == [1]


@pytest.mark.parametrize("bad", ["-x", "a b", "%2F", "$x", "x" * 256])
def test_names(group, bad):
    error = error_of(group.http.put(f"{group.topic}/groups/{bad}", json={}), 400)
    assert (error["code"], error["detail"]) == ("invalid_request", {"field": "group"})


def test_consumers_have_bounded_names(group):
    for consumer in ("", "x" * (limits.GROUP_CONSUMER_MAX + 1)):
        assert group.refused("fetch", 400, consumer=consumer)["detail"]["field"] == "consumer"
    assert group.http.get(f"{group.topic}/groups").json()["groups"] == []


def test_no_topic_no_group(http, name):
    group = Group(http, name)
    for what, body in (("fetch", {}), ("ack", {"seq": 0}), ("seek", {"to": "latest"})):
        assert group.refused(what, 404, **body)["code"] == "topic_not_found"
    assert error_of(http.put(group.path, json={}), 404)["code"] == "topic_not_found"
    assert error_of(http.get(f"{group.topic}/groups"), 404)["code"] == "topic_not_found"


def test_there_is_a_limit_to_groups_of_a_topic(group):
    for n in range(limits.GROUPS_PER_TOPIC_MAX):
        assert group.http.put(f"{group.topic}/groups/g{n}").status_code == 201
    error = error_of(group.http.put(f"{group.topic}/groups/more"), 429)
    assert (error["code"], error["detail"]["limit"]) == ("throttled", "groups_per_topic")
    assert group.refused("fetch", 429)["detail"]["max"] == limits.GROUPS_PER_TOPIC_MAX
    assert group.http.put(f"{group.topic}/groups/g7").status_code == 200
    assert group.http.delete(f"{group.topic}/groups/g7").json()["deleted"] is True
    assert group.fetch() == []
    group.http.put(f"{group.topic}.more")
    group.http.put(f"{group.topic}.more/groups/g")  # one more than metrics show
    assert "topics_group_metrics_truncated 1" in group.http.get("/v0/metrics").text
    for topic in (group.topic, f"{group.topic}.more"):
        group.http.delete(topic)


def test_a_reader_may_make_a_group_by_fetching_and_no_other_way(tmp_path):
    with Server(tmp_path, shards=1, api_keys="all,reader:read,other:read+write:x.") as server:
        server.start().wait_ready()
        with httpx.Client(base_url=server.url, timeout=60) as http:

            def as_key(key: str, method: str, what: str = "", **body: Any) -> int:
                path = f"/v0/topics/t/groups/g{what}"
                answer = http.request(method, path, json=body, headers={"authorization": f"Bearer {key}"})
                return answer.status_code

            http.put("/v0/topics/t", json={}, headers={"authorization": "Bearer all"})
            assert as_key("reader", "PUT") == 403
            assert as_key("reader", "POST", "/fetch") == 200
            assert as_key("reader", "GET") == 200
            assert as_key("reader", "POST", "/ack", seq=0) == 403
            assert as_key("reader", "POST", "/seek", to="latest") == 403
            assert as_key("reader", "DELETE") == 403
            assert as_key("other", "POST", "/fetch") == 403
            assert as_key("all", "POST", "/ack", seq=0) == 200


# --- restarts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["fsync", "disk", "memory", "ephemeral"])
def test_groups_are_there_after_a_restart_and_after_a_kill(tmp_path, durability):
    with Server(tmp_path, shards=1) as server, httpx.Client(timeout=60) as http:
        server.start().wait_ready()
        http.base_url = server.url
        group = Group(http, "t")
        http.put("/v0/topics/t", json={"durability": durability})
        group.append(*range(6))
        group.fetch(consumer="one")
        group.fetch(consumer="two")
        group.ack(4, consumer="two")
        http.put("/v0/topics/t/groups/removed")
        http.delete("/v0/topics/t/groups/removed")
        for end in (server.stop, server.kill_all):
            end()
            server.start().wait_ready()
            http.base_url = server.url
            state = group.state()
            assert (state["cursor_seq"], state["consumer"], state["head_seq"]) == (4, "two", 6)
            assert group.refused("fetch", 409, consumer="one")["code"] == "taken_over"
            assert [one["group"] for one in http.get("/v0/topics/t/groups").json()["groups"]] == ["g"]


def test_of_many_that_make_one_at_once_one_has_made_it(http, name):
    """Also where each of them waits for copies first."""
    source = Group(http, f"{name}.source")
    for n in range(8):
        dest = Group(http, f"{name}.{n}")
        http.put(dest.topic, json={})
        http.put(f"/v0/routers/{name}.{n}", json={"source": f"{name}.source", "dest": f"{name}.{n}"})
        source.append(*range(1000))
        make = partial(http.put, dest.path, json={"from": "latest"})
        answers = [result() for result in [in_background(make) for _ in range(6)]]
        assert sorted(answer.status_code for answer in answers) == [200] * 5 + [201]
        assert [answer.json()["created"] for answer in answers].count(True) == 1


def test_a_group_of_a_topic_that_routers_lead_to(tmp_path):
    """Copies are made again after a crash; the group is where it was."""
    with Server(tmp_path, shards=2) as server, httpx.Client(timeout=60) as http:
        server.start().wait_ready()
        http.base_url = server.url
        source, group = Group(http, "source"), Group(http, "copy")
        http.put("/v0/topics/source", json={"durable": True})
        http.put("/v0/topics/copy", json={"durable": True})
        assert http.put("/v0/routers/r", json={"source": "source", "dest": "copy"}).status_code == 201
        for n in range(20):
            source.append(n)
        wait_for(lambda: http.get("/v0/topics/copy").json()["head_seq"] == 20, "the copies")
        assert group.fetch(limit=20, consumer="one") == list(range(1, 21))
        assert group.ack(15, consumer="one") == 15
        server.kill_all()
        server.start().wait_ready()
        http.base_url = server.url
        assert group.state()["cursor_seq"] == 15
        page = group.post("fetch", consumer="one", wait_ms=5000)
        assert page["tombstone"] is None
        assert [record["data"] for record in page["records"]] == [15, 16, 17, 18, 19]
