"""Every route × every set of scopes × names inside and outside the prefixes, over real HTTP.

Made from the route table: a route that has no example here, or that asks for something else than the reference says,
fails.
"""

from collections.abc import Iterator
from itertools import product

import httpx
import pytest

from topics.gateway.routing import Route
from topics.gateway.table import ROUTES
from topics.keys import ADMIN, ALL, DELETE, READ, ROUTE_SCOPES, WRITE, scope_names
from topics.testing.server import Server

INSIDE, OUTSIDE = "mine.a", "theirs.a"
SCOPE_SETS = list(range(1, ALL + 1))
PREFIXES = ("", "mine.")

# What the API's table of scopes says, written down once more.
SCOPES = {
    "GET /v0/topics": READ,
    "GET /v0/topics/:topic": READ,
    "POST /v0/topics/:topic/diff": READ,
    "GET /v0/topics/:topic/seek": READ,
    "POST /v0/topics/:topic": WRITE,
    "DELETE /v0/topics/:topic": DELETE,
    "POST /v0/topics/:topic/delete": DELETE,
    "PUT /v0/topics/:topic": ADMIN,
    "POST /v0/topics/:topic/claim": READ | WRITE,
    "GET /v0/topics/:topic/work": READ | WRITE,
    "POST /v0/topics/:topic/ack": WRITE,
    "POST /v0/topics/:topic/nack": WRITE,
    "POST /v0/topics/:topic/extend": WRITE,
    "POST /v0/topics/:topic/redrive": READ | WRITE | DELETE,
    "GET /v0/topics/:topic/groups": READ,
    "GET /v0/topics/:topic/groups/:group": READ,
    "PUT /v0/topics/:topic/groups/:group": READ | WRITE,
    "DELETE /v0/topics/:topic/groups/:group": DELETE,
    "POST /v0/topics/:topic/groups/:group/fetch": READ,
    "POST /v0/topics/:topic/groups/:group/ack": READ | WRITE,
    "POST /v0/topics/:topic/groups/:group/seek": READ | WRITE,
    "GET /v0/routers": READ,
    "GET /v0/routers/:router": READ,
    "DELETE /v0/routers/:router": DELETE,
    "PUT /v0/routers/:router": ADMIN,
    "GET /v0/metrics": READ,
    "POST /v0/watch": READ,
    "GET /v0/watch/:wid": READ,
    "GET /v0/ws": 0,
    "GET /v0/health": None,
    "GET /healthz": None,
    "GET /v0/ready": None,
    "GET /readyz": None,
    "GET /v0/openapi.json": None,
    "GET /v0/docs": None,
}
BODIES = {
    "POST /v0/topics/:topic/diff": {"from_seq": 0},
    "POST /v0/topics/:topic": {"records": [{"data": 1}]},
    "POST /v0/topics/:topic/delete": {"before_seq": 1},
    "PUT /v0/topics/:topic": {},
    "POST /v0/watch": {"topics": {INSIDE: {}}},
    "POST /v0/topics/:topic/groups/:group/ack": {"seq": 0},
    "POST /v0/topics/:topic/groups/:group/seek": {"to": "latest"},
    "POST /v0/topics/:topic/claim": {"node": "w"},
    "POST /v0/topics/:topic/ack": {"node": "w", "seqs": [1]},
    "POST /v0/topics/:topic/nack": {"node": "w", "seqs": [1]},
    "POST /v0/topics/:topic/extend": {"node": "w", "seqs": [1], "lease_ms": 1},
}
QUERIES: dict[str, dict[str, str | int]] = {
    "GET /v0/topics/:topic/seek": {"ts": 0},
    "GET /v0/topics/:topic/work": {"node": "w"},
}
WID = "wid_" + "A" * 22
# What a route says that let the caller in, besides 200 and 201.
BEYOND_THE_DOOR = {
    *((404, code) for code in ("topic_not_found", "not_found", "router_not_found", "group_not_found")),
    (426, "invalid_request"),
}


def title(route: Route) -> str:
    return f"{route.method} {route.template}"


def secret(scopes: int, prefixes: str) -> str:
    return f"key-{scopes}-{'some' if prefixes else 'all'}"


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Server]:
    keys = [f"{secret(s, p)}:{'+'.join(scope_names(s))}:{p}" for s, p in product(SCOPE_SETS, PREFIXES)]
    with Server(tmp_path_factory.mktemp("matrix"), api_keys=",".join(keys)) as started:
        yield started.start().wait_ready()


@pytest.fixture(scope="module", params=["HTTP/1.1", "HTTP/2"])
def http(server, request) -> Iterator[httpx.Client]:
    two = request.param == "HTTP/2"
    with httpx.Client(base_url=server.url, timeout=60, http1=not two, http2=two) as client:
        assert client.get("/v0/health").http_version == request.param
        yield client


def ask(http: httpx.Client, route: Route, name: str, headers: dict[str, str]) -> httpx.Response:
    body = BODIES.get(title(route))
    if title(route) == "POST /v0/watch":
        body = {"topics": {name: {}}}
    if title(route) == "PUT /v0/routers/:router":
        body = {"source": f"{name}.source", "dest": f"{name}.dest"}
    if title(route) == "POST /v0/topics/:topic/redrive":
        body = {"to": f"{name}.back"}
    query = QUERIES.get(title(route))
    return http.request(route.method, path_of(route, name), params=query, json=body, headers=headers)


def path_of(route: Route, name: str) -> str:
    return route.template.replace(":topic", name).replace(":router", name).replace(":wid", WID).replace(":group", "g")


def refused(answer: httpx.Response, status: int, code: str) -> bool:
    if answer.status_code != status:
        return False
    error = answer.json()["error"]
    assert error["code"] == code
    assert "performance" in answer.json()
    assert (answer.headers.get("www-authenticate") == "Bearer") is (status == 401)
    return True


def test_the_table_is_the_one_of_the_api():
    assert {title(route) for route in ROUTES.table} == set(SCOPES)
    for route in ROUTES.table:
        assert route.access is ROUTE_SCOPES[route.needs]
        assert route.access.needs_key == (SCOPES[title(route)] is not None)
        assert route.access.scopes == (SCOPES[title(route)] or 0)
        assert route.access.query_token == route.stream  # only streams
    assert {needs for needs, access in ROUTE_SCOPES.items() if access.query_token} == {"watch.stream", "queue.work"}


@pytest.mark.parametrize("route", ROUTES.table, ids=title)
def test_scopes_and_prefixes(http, route):
    wanted, wrong = SCOPES[title(route)], []
    for scopes, prefixes, name in product(SCOPE_SETS, PREFIXES, (INSIDE, OUTSIDE)):
        answer = ask(http, route, name, {"authorization": f"Bearer {secret(scopes, prefixes)}"})
        may = wanted is None or not wanted & ~scopes
        if ":topic" in route.template or ":router" in route.template or title(route) == "POST /v0/watch":
            may = may and name.startswith(prefixes)
        served = answer.status_code in (200, 201) or (
            (answer.status_code, answer.json()["error"]["code"]) in BEYOND_THE_DOOR
        )
        if served != may or (not may and not refused(answer, 403, "forbidden")):
            wrong.append((scopes, prefixes, name, answer.status_code, answer.text))
    assert wrong == []


@pytest.mark.parametrize("route", ROUTES.table, ids=title)
@pytest.mark.parametrize("token", ["", "wrong", secret(ALL, "") + "x", secret(ALL, "")[:-1]])
def test_without_a_key_of_ours(http, route, token):
    answer = ask(http, route, INSIDE, {"authorization": f"Bearer {token}"} if token else {})
    if SCOPES[title(route)] is None:
        assert answer.status_code == 200
    else:
        assert refused(answer, 401, "unauthorized"), answer.text


@pytest.mark.parametrize("route", ROUTES.table, ids=title)
def test_a_token_in_the_query_is_no_key(http, route):
    """But for streams, which a browser cannot open with a header."""
    path = path_of(route, INSIDE) + "?node=w&token=" + secret(ALL, "")
    answer = http.request(route.method, path, json=BODIES.get(title(route)))
    assert answer.status_code == (404 if route.stream else 200 if SCOPES[title(route)] is None else 401)


def test_what_is_refused_has_no_effect(http):
    name = f"theirs.new-{http.get('/healthz').http_version[5]}"
    admin = {"authorization": f"Bearer {secret(ALL, '')}"}
    for scopes, prefixes in ((ALL & ~WRITE & ~ADMIN, ""), (ALL, "mine.")):
        headers = {"authorization": f"Bearer {secret(scopes, prefixes)}"}
        for method in ("POST", "PUT"):
            body = BODIES[f"{method} /v0/topics/:topic"]
            assert http.request(method, f"/v0/topics/{name}", json=body, headers=headers).status_code == 403
    assert http.get(f"/v0/topics/{name}", headers=admin).status_code == 404


def test_nothing_at_a_path_is_said_to_everybody(http):
    """The table of routes is no secret; what exists is."""
    for headers in ({}, {"authorization": f"Bearer {secret(READ, 'mine.')}"}):
        assert http.get("/v0/nope", headers=headers).status_code == 404
        absent, present = (http.patch(f"/v0/topics/{n}", headers=headers) for n in ("no-such", OUTSIDE))
        assert (absent.status_code, absent.json()["error"]) == (405, present.json()["error"])
