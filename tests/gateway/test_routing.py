"""One table for every transport."""

import re

import pytest

from tests.gateway.harness import FakeShards, request, serving
from topics.errors import TopicsError
from topics.gateway.app import QuartBody, create_app, quart_rule
from topics.gateway.dispatch import Gateway
from topics.gateway.messages import Request
from topics.gateway.routing import Route, Routes
from topics.gateway.table import ROUTES


def match(method, path):
    asked = Request(method, path.encode(), b"", {}, QuartBody(None))
    return ROUTES.match(asked)


@pytest.mark.parametrize(
    ("method", "path", "template", "names"),
    [
        ("GET", "/v0/topics", "/v0/topics", []),
        ("GET", "/v0/topics/a.b:c-d_e", "/v0/topics/:topic", ["a.b:c-d_e"]),
        ("GET", "/v0/topics/%61", "/v0/topics/:topic", ["a"]),
        ("GET", "/v0/topics/%2561", "/v0/topics/:topic", ["%61"]),
        ("GET", "/v0/topics/a%2Fb", "/v0/topics/:topic", ["a/b"]),
        ("POST", "/v0/topics/diff/diff", "/v0/topics/:topic/diff", ["diff"]),
        ("POST", "/v0/t%6Fpics/a/d%69ff", "/v0/topics/:topic/diff", ["a"]),
        ("POST", "/v0/topics/a/groups/b%3Ac/fetch", "/v0/topics/:topic/groups/:group/fetch", ["a", "b:c"]),
        ("GET", "/v0/topics/groups/groups", "/v0/topics/:topic/groups", ["groups"]),
        ("HEAD", "/v0/health", "/v0/health", []),
        ("GET", "/healthz", "/healthz", []),
    ],
)
def test_found(method, path, template, names):
    route, found = match(method, path)
    assert (route.template, found) == (template, tuple(name.encode() for name in names))


@pytest.mark.parametrize(
    "path",
    ["/", "", "*", "/v0", "/v0/", "/v0/topics/", "/v0/topics/a/", "/v0/topics//diff", "/v0/topics/a/b", "//v0/topics",
     "/V0/topics", "/v1/topics", "/v0/topics/a/diff/x", "/v0/%2F", "/v0/routers/", "/v0/watch/", "/v0/topics/a/x"],
)  # fmt: skip
def test_not_found(path):
    with pytest.raises(TopicsError) as refused:
        match("GET", path)
    assert refused.value.code == "not_found"


def test_methods():
    with pytest.raises(TopicsError) as refused:
        match("GET", "/v0/topics/a/diff")
    assert (refused.value.code, refused.value.detail["allow"]) == ("method_not_allowed", ["POST"])


async def test_a_name_that_is_not_utf_8():
    async with serving() as bench, bench.client() as client:
        for method in ("GET", "POST"):
            answer = await client.request(method, "/v0/topics/%ff")
            assert (answer.status, b"not UTF-8" in answer.body) == (400, True)


def test_every_route_is_in_the_quart_app():
    """A hot route without a twin there would be a 404 over HTTP/2."""
    app = create_app(Gateway(FakeShards(), ROUTES))  # type: ignore[arg-type]
    there = {
        (rule.rule, method) for rule in app.url_map.iter_rules() if not rule.websocket for method in rule.methods or ()
    }
    assert {(quart_rule(route.template), route.method) for route in ROUTES.table} <= there
    assert not any(method == "OPTIONS" for _, method in there)


def test_hot_routes():
    hot = {f"{route.method} {route.template}" for route in ROUTES.table if route.hot}
    assert hot == {
        "POST /v0/topics/:topic",
        "POST /v0/topics/:topic/diff",
        "GET /v0/health",
        "GET /healthz",
        "GET /v0/ready",
        "GET /readyz",
        "GET /v0/watch/:wid",
        "GET /v0/topics/:topic/work",
        "POST /v0/topics/:topic/claim",
        "POST /v0/topics/:topic/ack",
        "POST /v0/topics/:topic/nack",
        "POST /v0/topics/:topic/extend",
        "POST /v0/topics/:topic/groups/:group/fetch",
        "POST /v0/topics/:topic/groups/:group/ack",
        "POST /v0/topics/:topic/groups/:group/seek",
    }


def timeless(data: bytes) -> bytes:
    data = re.sub(rb"(?:date|x-request-id): [^\r]+\r\n", b"", data)
    head, _, body = re.sub(rb'("server_total_ms":)[\d.]+', rb"\1?", data).partition(b"\r\n\r\n")
    lines = sorted(line for line in head.split(b"\r\n") if not line.startswith(b"content-length"))
    return b"\n".join(lines) + b"\n\n" + re.sub(rb'("uptime_ms":)\d+', rb"\1?", body)


@pytest.mark.parametrize(
    "data",
    [
        request("POST", "/v0/topics/a", b"{}", "Connection: close\r\n"),
        request("POST", "/v0/topics/a?return_seqs=maybe", b"{}", "Connection: close\r\n"),
        request("POST", "/v0/topics/-a", b"{}", "Connection: close\r\n"),
        request("POST", "/v0/topics/%ff/diff", b"{}", "Connection: close\r\n"),
        request("POST", "/v0/topics/a/diff", b"{}", "Connection: close\r\nContent-Encoding: br\r\n"),
        request("POST", "/v0/topics/a/diff", b"{}", "Connection: close\r\nContent-Encoding: gzip\r\n"),
        request("GET", "/v0/health", headers="Connection: close\r\n"),
        request("GET", "/v0/ready", headers="Connection: close\r\n"),
    ],
)
async def test_a_hot_route_and_its_twin_answer_alike(data, monkeypatch):
    async with serving() as bench:
        hot = await bench.exchange(data)
        cold = Routes([Route(r.method, r.template, r.handle, r.needs) for r in ROUTES.table])
        bench.server.gateway.routes = cold
        assert timeless(await bench.exchange(data)) == timeless(hot)
