"""What counts as absent in every call: null in an optional field of a body, an empty parameter, an empty header."""

import json
from typing import Any

import pytest

from tests.api.instance import envelope
from tests.api.sockets import Socket

JSON = {"content-type": "application/json"}
DIFF = ("limit", "wait_ms", "include_tags", "include_meta", "include_data", "max_batch_bytes", "bulk", "node")
FETCH = (*DIFF, "consumer", "take_over", "from")
APPEND = ("disable_backpressure", "create", "node", "idempotency_key", "config")
WATCH = ("limit", "max_batch_bytes", "heartbeat_ms", "include_meta", "include_tags", "include_data", "consistency")
ROUTER = ("preserve_node", "preserve_tag", "create_dest", "filter", "allow_cycle", "guarantee")
ONE = {"data": 1, "tag": "t", "meta": {"k": "v"}}


def nulls(*fields: str) -> dict[str, Any]:
    return dict.fromkeys(fields)


def without(answer: Any, *fields: str) -> dict[str, Any]:
    assert answer.is_success, answer.text
    return {field: value for field, value in answer.json().items() if field not in ("performance", *fields)}


@pytest.fixture
def topic(http, name) -> str:
    assert http.post(f"/v0/topics/{name}", json={"records": [ONE, ONE]}).status_code == 201
    return f"/v0/topics/{name}"


@pytest.fixture
def jobs(http, name) -> str:
    assert http.put(f"/v0/topics/{name}", json={"type": "queue"}).status_code == 201
    assert http.post(f"/v0/topics/{name}", json={"records": [ONE] * 3}).is_success
    return f"/v0/topics/{name}"


class TestBodies:
    @pytest.mark.parametrize("field", [*DIFF, "from_seq", "from_ts"])
    def test_diff(self, http, topic, field):
        assert without(http.post(f"{topic}/diff", json=nulls(field))) == without(http.post(f"{topic}/diff", json={}))

    def test_several_nulls_beside_what_is_given(self, http, topic):
        body = nulls(*DIFF, "from_ts") | {"from_seq": 1, "include_meta": False, "include_tags": True}
        assert without(http.post(f"{topic}/diff", json=body))["records"][0].keys() == {"$seq", "$ts", "$tag", "data"}

    @pytest.mark.parametrize("field", APPEND)
    @pytest.mark.parametrize("size", [1, 700_000], ids=["small", "in pieces"])
    def test_append(self, http, name, field, size):
        text = '[1.0, "\\u00e9",  {"null":null} ]'
        others = f',{{"data":"{"x" * size}","tag":null}}' * 2
        body = f'{{"{field}":null,"records":[{{"data":{text}}}{others}]}}'
        answer = http.post(f"/v0/topics/{name}", content=body, headers=JSON)
        assert answer.status_code == 201, answer.text
        assert text in http.post(f"/v0/topics/{name}/diff", json={"limit": 1}).text

    @pytest.mark.parametrize("field", ["disable_backpressure", "return_seqs"])
    def test_publish(self, http, instance, topic, field):
        with Socket(instance.port) as ws:
            answer = ws.ask("publish", topic=topic.rpartition("/")[2], records=[ONE], **nulls(field))
            assert answer["seqs"] == [3], answer

    def test_delete(self, http, topic):
        assert without(http.post(f"{topic}/delete", json={"match": "t", "before_seq": None}))["deleted"] == 2

    def test_watch(self, http, topic, name):
        starts: list[tuple[dict[str, Any] | None, int]] = [
            (nulls("from_ts", "tail", "from_seq"), 0),
            (nulls("from_ts", "tail") | {"from_seq": 1}, 1),
            (nulls("from_ts", "from_seq") | {"tail": True}, 2),
            (None, 0),
        ]
        for start, seq in starts:
            body = {"topics": {name: start}} | nulls(*WATCH, "node", "cursor")
            assert without(http.post("/v0/watch", json=body))["topics"][name]["from_seq"] == seq

    def test_subscribe(self, http, instance, topic, name):
        with Socket(instance.port) as ws:
            fields = nulls(*(field for field in DIFF if field not in ("wait_ms", "bulk")), "credits", "from")
            answer = ws.ask("subscribe", topics={name: nulls("from_seq", "from_ts", "tail")}, **fields)
            assert answer["topics"][name]["from_seq"] == 0, answer
            assert len(ws.next("record")["records"]) == 2

    @pytest.mark.parametrize("field", ROUTER)
    def test_router(self, http, name, field):
        body = {"source": name, "dest": f"{name}.copy"}
        answer = http.put(f"/v0/routers/{name}", json=body | nulls(field))
        assert answer.status_code == 201, answer.text
        again = http.put(f"/v0/routers/{name}", json=body)
        assert without(again, "created") == without(answer, "created")

    def test_claim_ack_nack_extend(self, http, jobs):
        settle: dict[str, Any] = {"node": "w", "lease_ids": None}
        body = {"node": "w", "max": 3} | nulls("lease_ms", "wait_ms")
        assert without(http.post(f"{jobs}/claim", json=body))["count"] == 3
        assert without(http.post(f"{jobs}/extend", json=settle | {"seqs": [1], "lease_ms": 500}))["extended"] == 1
        body = settle | {"seqs": [1]} | nulls("penalty", "delay_ms", "reason")
        assert without(http.post(f"{jobs}/nack", json=body))["nacked"] == 1
        assert without(http.post(f"{jobs}/ack", json=settle | {"seqs": [2]}))["acked"] == 1
        assert without(http.post(f"{jobs}/claim", json={"node": "w", "max": None}))["count"] == 1

    def test_redrive(self, http, jobs, name):
        assert http.put(f"/v0/topics/{name}.dead", json={}).status_code == 201
        body = {"to": name} | nulls("match", "limit")
        assert without(http.post(f"/v0/topics/{name}.dead/redrive", json=body))["moved"] == 0

    def test_groups(self, http, topic):
        assert http.put(f"{topic}/groups/g", json=nulls("from")).status_code == 201
        assert len(without(http.post(f"{topic}/groups/g/fetch", json=nulls(*FETCH)))["records"]) == 2
        assert without(http.post(f"{topic}/groups/g/ack", json={"seq": 1, "consumer": None}))["cursor_seq"] == 1
        assert without(http.post(f"{topic}/groups/g/seek", json={"to": 0, "consumer": None}))["cursor_seq"] == 0

    @pytest.mark.parametrize(
        ("path", "body", "said"),
        [
            ("", {"records": None}, "records: expected `array`, got `null`"),
            ("", {"records": [{"data": 1}, None]}, "records[1]: expected `object`, got `null`"),
            ("", {"records": [{"data": 1}], "config": {"ttl_ms": None}}, "ttl_ms must be an integer"),
            ("/diff", None, "the body: expected `object`, got `null`"),
            ("/diff", {"node": [None]}, "node[0]: expected `str`, got `null`"),
            ("/diff", {"limit": None, "wait_ms": "1"}, "wait_ms: expected `int`, got `str`"),
            ("/diff", {"limit": "1", "wait_ms": None}, "limit: expected `int`, got `str`"),
            ("/claim", {"node": None}, "node: expected `str`, got `null`"),
            ("/ack", {"node": "w", "seqs": None}, "seqs: expected `array`, got `null`"),
            ("/extend", {"node": "w", "seqs": [1], "lease_ms": None}, "lease_ms: expected `int`, got `null`"),
            ("/delete", {"before_seq": 1, "what": None}, "the body: object contains unknown field `what`"),
            ("/delete", {"before_seq": None, "match": None}, "give before_seq, match or both"),
            ("/groups/g/ack", {"seq": None}, "seq: expected `int`, got `null`"),
            ("/groups/g/fetch", {"limit": None, "from_seq": None}, "object contains unknown field `from_seq`"),
        ],
    )
    def test_other_nulls_are_refused_in_the_words_of_before(self, http, jobs, path, body, said):
        answer = http.post(f"{jobs}{path}", content=json.dumps(body), headers=JSON)
        assert said in envelope(answer, 400, "invalid_request")["message"]

    def test_what_is_no_json_behind_a_null_is_told_by_its_place(self, http, topic):
        answer = http.post(f"{topic}/diff", content=b'{"limit":null,"wait_ms":1x}', headers=JSON)
        said = envelope(answer, 400, "invalid_request")["message"]
        assert said.startswith("the body is not valid JSON: ")
        assert "(byte 25)" in said

    @pytest.mark.parametrize("field", ["ttl_ms", "type", "durable", "durability", "auto_create", "lease_ms"])
    def test_a_config_is_a_full_statement(self, http, name, field):
        envelope(http.put(f"/v0/topics/{name}", json=nulls(field)), 400, "invalid_request")

    def test_in_a_config_null_has_a_meaning_of_its_own(self, http, topic):
        assert http.put(topic, json={"priority": 7, "dead_letter": "x"}).status_code == 200
        config = without(http.put(topic, json=nulls("priority", "dead_letter")))["config"]
        assert (config["priority"], config["dead_letter"]) == (None, None)

    @pytest.mark.parametrize("field", ["source", "dest"])
    def test_a_router_names_both_ends(self, http, name, field):
        body = {"source": name, "dest": f"{name}.copy"} | nulls(field)
        said = envelope(http.put(f"/v0/routers/{name}", json=body), 400, "invalid_request")["message"]
        assert said.startswith(f"{field} must be the name of a topic")


class TestParameters:
    @pytest.mark.parametrize("query", ["cursor=", "page_size=", "touch=", "prefix=", "touch", "cursor=eA==&cursor="])
    def test_lists(self, http, query):
        assert http.get(f"/v0/topics?{query}").status_code == 200
        assert http.get(f"/v0/routers?{query}&source=&dest=").status_code == 200

    def test_empty_source_and_dest_pass_all_routers(self, http, name):
        assert http.put(f"/v0/routers/{name}", json={"source": name, "dest": f"{name}.copy"}).status_code == 201
        for query in ("source=", "dest="):
            (found,) = without(http.get(f"/v0/routers?prefix={name}&{query}"))["routers"]
            assert found["router"] == name

    def test_one_topic(self, http, topic, name):
        assert http.get(f"{topic}?touch=").status_code == 200
        assert without(http.post(f"{topic}?return_seqs=", json={"records": [ONE]}))["seqs"] == [3]
        assert http.post("/v0/watch?lenient=", json={"topics": {name: {}}}).status_code == 200
        assert http.get("/v0/metrics?units=").status_code == 200

    def test_jobs(self, http, jobs):
        assert http.head(f"{jobs}/work?node=w&max=&lease_ms=").status_code == 200

    def test_what_must_be_given_is_still_missed(self, http, jobs):
        envelope(http.get(f"{jobs}/seek?ts="), 400, "invalid_request")
        envelope(http.get(f"{jobs}/work?node="), 400, "invalid_request")

    @pytest.mark.parametrize("query", ["if_empty=", "if_empty", "if_empty=true&if_empty="])
    def test_the_guard_of_a_removal_says_what_it_means(self, http, topic, query):
        envelope(http.delete(f"{topic}?{query}"), 400, "invalid_request")
        assert http.get(topic).status_code == 200
