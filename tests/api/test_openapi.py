"""The document: complete, true to the code, and its examples work on a real server."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema_rs
import msgspec
import pytest
import websockets

from topics.core import config, routes
from topics.gateway.openapi import bodies
from topics.gateway.openapi.document import document, path_of
from topics.gateway.openapi.operations import OPERATIONS, WEBSOCKET
from topics.gateway.openapi.replies import Error
from topics.gateway.statuses import STATUS
from topics.gateway.table import ROUTES
from topics.limits import Limits
from topics.testing.server import Server

DOCUMENT: dict[str, Any] = json.loads(msgspec.json.encode(document(ROUTES.table, Limits())))
TABLE = [route for route in ROUTES.table if not route.stream and route.needs != "ws.open"]
JSON = "application/json"


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def refs(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from [inner] if key == "$ref" else refs(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from refs(inner)


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("openapi"), shards=2) as started:
        yield started.start().wait_ready()


@pytest.fixture(scope="module")
def http(server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


def prepare(http: httpx.Client) -> None:
    """What the examples speak of."""
    assert http.put("/v0/topics/orders", json={}).status_code in (200, 201)
    assert http.put("/v0/topics/jobs", json={"type": "queue"}).status_code in (200, 201)
    assert http.put("/v0/routers/orders->audit", json={"source": "orders", "dest": "audit"}).status_code in (200, 201)
    assert http.post("/v0/topics/orders", json={"records": [{"data": n, "tag": "t"} for n in range(3)]}).is_success
    assert http.put("/v0/topics/orders/groups/billing", json={}).status_code in (200, 201)
    assert http.put("/v0/topics/jobs.dead", json={}).status_code in (200, 201)
    assert http.post(
        "/v0/topics/jobs", json={"records": [{"data": n, "meta": {"a": "b"}} for n in range(3)]}
    ).is_success


# --- what it says -----------------------------------------------------------------------------------------------------


def test_every_route_is_in_it_and_nothing_else():
    assert {(method, path) for method, path, _ in operations()} == {
        (route.method, path_of(route)) for route in ROUTES.table
    }
    assert {route.needs for route in ROUTES.table} == set(OPERATIONS)
    ids = [operation["operationId"] for _, _, operation in operations()]
    assert len(ids) == len(set(ids))


def test_operations_are_grouped_by_what_they_are_about():
    groups = {"topics", "queues", "groups", "routers", "live", "server"}
    assert {tag["name"] for tag in DOCUMENT["tags"]} == groups
    assert all(set(operation["tags"]) <= groups for _, _, operation in operations())
    assert DOCUMENT["paths"]["/v0/topics/{topic}"]["get"]["tags"] == ["topics"]


def test_what_dead_letters_tell_is_in_it():
    told = DOCUMENT["components"]["schemas"]["TopicConfig"]["properties"]["dead_letter"]["description"]
    for name in ("from", "src_seq", "deliveries", "reason", "last_failure_ts"):
        assert f"`$dead_letter_{name}`" in told


def test_every_reference_leads_somewhere():
    names = {ref.removeprefix("#/components/schemas/") for ref in refs(DOCUMENT)}
    assert names <= set(DOCUMENT["components"]["schemas"])


def test_every_field_is_explained():
    silent = [
        f"{name}.{field}"
        for name, schema in DOCUMENT["components"]["schemas"].items()
        if hasattr(bodies, name)
        for field, shape in schema["properties"].items()
        if "description" not in shape
    ]
    assert set(silent) <= {"Subscribe.topics", "Publish.return_seqs"}


def test_every_answer_has_an_example():
    bare = [
        (path, status, kind)
        for _, path, operation in operations()
        for status, answer in operation["responses"].items()
        for kind, media in answer.get("content", {}).items()
        if not ({"example", "examples"} & set(media))
    ]
    assert bare == []
    assert all(
        operation["requestBody"]["content"][JSON]["examples"]
        for _, _, operation in operations()
        if "requestBody" in operation
    )


def test_the_examples_of_answers_are_of_their_types():
    for method, path, operation in operations():
        for status, answer in operation["responses"].items():
            media = answer.get("content", {}).get(JSON, {})
            for one in media.get("examples", {}).values():
                error = msgspec.convert(one["value"], Error, strict=True)
                assert STATUS[error.error.code] == int(status) or int(status) in (408, 414, 426, 431)
            needs = operation["operationId"].removesuffix("_alias").replace("_", ".")
            struct = OPERATIONS[needs].answers.get(int(status))
            if struct is not None:
                assert same(media["example"], struct), (method, path)


def test_a_config_and_a_router_have_the_fields_that_are_checked():
    assert list(bodies.TopicConfig.__struct_fields__) == list(config._CHECKS)
    assert set(bodies.RouterBody.__struct_fields__) == set(routes._FIELDS)
    defaults = bodies.TopicConfig()
    for field in set(config.TopicConfig.__struct_fields__) - set(config.HIDDEN):
        assert getattr(defaults, field) == getattr(config.DEFAULT, field)


def same(value: Any, struct: Any) -> bool:
    """Whether it is of this type, and has nothing that the type does not know."""
    return bool(msgspec.to_builtins(msgspec.convert(value, struct, strict=True)) == value)


def accepts(name: str, value: Any) -> bool:
    """Whether the document says that such a body is right."""
    schema = {"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]}
    return bool(jsonschema_rs.validator_for(schema).is_valid(value))


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("FetchBody", {"from": 0}, {"from": -1}),
        ("FetchBody", {"from": {"ts": 0}}, {"from": {"ts": -1}}),
        ("FetchBody", {"from": "latest"}, {"from": "middle"}),
        ("FetchBody", {"take_over": True, "consumer": "a"}, {"take_over": True}),
        ("FetchBody", {"take_over": False}, {"take_over": True, "consumer": None}),
        ("GroupBody", {"from": 3}, {"from": -3}),
        ("GroupBody", {"from": None}, {"from": [None]}),
        ("DiffBody", {"from_seq": None, "from_ts": 5, "limit": None, "bulk": None}, {"from_seq": 1, "from_ts": 5}),
        ("WatchBody", {"topics": {"t": {"from_seq": None, "from_ts": 5}}, "consistency": None}, {"topics": None}),
        ("WatchBody", {"topics": {"t": None}}, {"topics": {"t": {"from_seq": 1, "from_ts": 5}}}),
        ("RouterBody", {"source": "a", "dest": "b", "guarantee": None, "filter": None}, {"source": "a", "dest": None}),
        ("AppendBody", {"records": [{"data": 1}], "disable_backpressure": None}, {"records": None}),
        ("AppendBody", {"records": [{"data": 1}], "config": None}, {"records": [], "config": {"ttl_ms": None}}),
        ("NackBody", {"node": "w", "seqs": [1], "penalty": None}, {"node": "w", "seqs": None}),
        ("ExtendBody", {"node": "w", "seqs": [1], "lease_ms": 5}, {"node": "w", "seqs": [1], "lease_ms": None}),
        ("TopicConfig", {"priority": None, "dead_letter": None}, {"durable": None}),
        ("Publish", {"topic": "t", "records": [{"data": 1}], "return_seqs": None}, {"topic": "t", "records": None}),
        ("Subscribe", {"topic": "t", "from": None, "limit": None}, {"topic": "t", "take_over": True, "group": None}),
        ("SeekBody", {"to": 7}, {"to": -7}),
        ("SeekBody", {"to": {"ts": 5}}, {"to": {"ts": -5}}),
        ("RecordIn", {"data": 1, "delay_ms": 5}, {"data": 1, "delay_ms": 5, "not_before": 9}),
        ("RecordIn", {"data": 1, "delay_ms": 5, "not_before": None}, {"data": 1, "delay_ms": -5}),
        ("RedriveBody", {"to": "jobs"}, {"to": -1}),
        ("Subscribe", {"topic": "t", "group": "g", "from": "latest"}, {"topic": "t", "from": "latest"}),
        ("Subscribe", {"topic": "t", "group": "g", "consumer": "a"}, {"topic": "t", "consumer": "a"}),
        ("Subscribe", {"topic": "t", "consumer": None, "take_over": False}, {"topic": "t", "take_over": True}),
        ("WsAck", {"op": "ack", "topic": "t", "seq": 1, "group": "g"}, {"topic": "t", "seq": 1, "grupo": "g"}),
        ("Credit", {"op": "credit", "request_id": 1, "topic": "t", "n": 1}, {"op": "ack", "topic": "t", "n": 1}),
    ],
)
def test_bodies_that_are_right_and_wrong_by_the_document(name, good, bad):
    assert (accepts(name, good), accepts(name, bad)) == (True, False)


def test_fields_of_one_name_are_told_apart():
    schemas = DOCUMENT["components"]["schemas"]
    for field, names in (("to", ("RedriveBody", "SeekBody")), ("moved", ("Redriven", "GroupMoved"))):
        assert len({schemas[name]["properties"][field]["description"] for name in names}) == 2


# --- what is served ---------------------------------------------------------------------------------------------------


def test_it_is_served_to_everybody_also_packed(http):
    answer = http.get("/v0/openapi.json", headers={"accept-encoding": "gzip"})
    assert answer.headers["content-type"] == JSON
    assert answer.headers["content-encoding"] == "gzip"
    assert answer.json() == DOCUMENT
    assert http.get("/v0/openapi.json", headers={"accept-encoding": "identity"}).json() == DOCUMENT


def test_the_page_needs_nobody_else(http):
    answer = http.get("/v0/docs")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "connect-src 'self'" in policy
    assert "://" not in answer.text
    assert "innerHTML" not in answer.text
    assert len(answer.content) < 30_000


def test_with_probe_auth_it_takes_a_key(tmp_path):
    with Server(tmp_path, shards=1, api_keys="secret", probe_auth="true") as server:
        server.start().wait_ready()
        for path in ("/v0/openapi.json", "/v0/docs"):
            assert httpx.get(server.url + path).status_code == 401
            assert httpx.get(server.url + path, headers={"authorization": "Bearer secret"}).status_code == 200


# --- examples, sent ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", TABLE, ids=lambda route: f"{route.method} {route.template}")
def test_the_examples_of_requests_work(http, route):
    prepare(http)
    operation = DOCUMENT["paths"][path_of(route)][route.method.lower()]
    path, query = path_of(route), {}
    for parameter in operation.get("parameters", ()):
        if parameter["in"] == "path":
            path = path.replace(f"{{{parameter['name']}}}", parameter["example"])
        elif "example" in parameter:
            query[parameter["name"]] = str(parameter["example"]).lower()
    media = operation.get("requestBody", {"content": {JSON: {}}})["content"][JSON]
    for sent in [one["value"] for one in media.get("examples", {}).values()] or [None]:
        answer = http.request(route.method, path, params=query, json=sent)
        assert answer.is_success, answer.text
        struct = OPERATIONS[route.needs].answers.get(answer.status_code)
        if struct is not None:
            assert same(answer.json(), struct)
        else:
            assert answer.headers["content-type"].split(";")[0] in operation["responses"]["200"]["content"]


def test_created_is_of_the_type_too(http):
    for path, body, needs in (
        ("/v0/topics/new-by-put", {}, "topic.put"),
        ("/v0/topics/new-by-put/groups/new", {"from": "latest"}, "group.put"),
        ("/v0/routers/new-one", {"source": "new-source", "dest": "new-dest"}, "router.put"),
    ):
        answer = http.put(path, json=body)
        assert answer.status_code == 201
        assert same(answer.json(), OPERATIONS[needs].answers[201])
    answer = http.post("/v0/topics/new-by-append", json={"records": [{"data": None}]})
    assert answer.status_code == 201
    assert same(answer.json(), OPERATIONS["topic.append"].answers[201])


def test_lists_and_gaps_and_jobs_are_of_their_types(http):
    """Answers with something in them: what they list has types of its own."""
    prepare(http)
    for path, needs in (("/v0/topics?page_size=1", "topic.list"), ("/v0/routers", "router.list")):
        answer = http.get(path).json()
        assert same(answer, OPERATIONS[needs].answers[200])
        assert answer["topics" if needs == "topic.list" else "routers"]
    claimed = http.post("/v0/topics/jobs/claim", json={"node": "w", "max": 2}).json()
    assert same(claimed, OPERATIONS["queue.claim"].answers[200])
    assert claimed["claimed"]
    assert same(http.get("/v0/topics/jobs").json(), OPERATIONS["topic.state"].answers[200])
    listed = http.get("/v0/topics/orders/groups").json()
    assert same(listed, OPERATIONS["group.list"].answers[200])
    assert listed["groups"]
    state = http.get("/v0/topics/orders").json()
    assert same(state, OPERATIONS["topic.state"].answers[200])
    assert state["groups"]
    http.put("/v0/topics/small", json={"cap_records": 1})
    for n in range(3):
        http.post("/v0/topics/small", json={"records": [{"data": n}]})
    read = http.post("/v0/topics/small/diff", json={"include_data": False}).json()
    assert same(read, OPERATIONS["topic.diff"].answers[200])


def test_streams_open_as_shown(http, server):
    prepare(http)
    created = http.post("/v0/watch", json={"topics": {"orders": {}}}).json()
    for path in (created["stream_url"], "/v0/topics/jobs/work?node=worker-1&max=8&lease_ms=30000"):
        with http.stream("GET", path) as answer:
            assert answer.status_code == 200
            assert answer.headers["content-type"].startswith("text/event-stream")


def test_a_plain_get_of_the_websocket_is_documented(http):
    answer = http.get("/v0/ws")
    assert str(answer.status_code) in DOCUMENT["paths"]["/v0/ws"]["get"]["responses"]
    assert same(answer.json(), Error)


async def _talk(url: str) -> list[str]:
    async with websockets.connect(url) as socket:
        answers = []
        for op, (_, example) in WEBSOCKET.items():
            if op == "credit":
                wanted = {"op": "subscribe", "topic": "orders", "group": "billing", "credits": 1, "request_id": "g1"}
                await socket.send(json.dumps(wanted))
                while json.loads(await socket.recv()).get("request_id") != "g1":
                    pass
            await socket.send(json.dumps(example))
            while (frame := json.loads(await socket.recv())).get("request_id") != example["request_id"]:
                pass
            answers.append(f"{op}: {frame['op']}")
        return answers


def test_the_commands_of_a_websocket_work(http, server):
    prepare(http)
    answers = asyncio.run(_talk(f"ws://127.0.0.1:{server.port}/v0/ws"))
    assert answers == [
        "subscribe: subscribed", "publish: ack", "credit: credited", "ack: acked", "unsubscribe: unsubscribed",
        "ping: pong",
    ]  # fmt: skip
