"""The door with routes of its own: streams and their tokens in the query, probes, and what comes without a visitor."""

import pytest

from tests.gateway.harness import request, serving
from topics.board import Board
from topics.errors import TopicsError
from topics.gateway.access import Door
from topics.gateway.app import QuartBody
from topics.gateway.messages import Request, Response, header_map
from topics.gateway.routing import Route, Routes
from topics.gateway.slots import RequestSlots, StreamSlots
from topics.keys import ROUTE_SCOPES, KeyRing, parse_entries
from topics.settings import Caps

ENTRIES = ["full", "reader:read", "rw:rw:mine.", "a+b/c:read", "writer:write"]


async def answer(gateway, request: Request) -> Response:
    with gateway.door.streams.take(request.principal.index):
        return Response(b'{"key":%d,"name":"%b"' % (request.principal.index, request.name.encode()), 200, {})


STREAMS = Routes(
    [
        Route("GET", "/v0/watch/:wid", answer, "watch.stream", stream=True),
        Route("GET", "/v0/topics/:topic/work", answer, "queue.work", stream=True),
        Route("GET", "/v0/topics/:topic", answer, "topic.state"),
    ]
)


def ring() -> KeyRing:
    return KeyRing(parse_entries([(str(n), entry) for n, entry in enumerate(ENTRIES)]))


async def ask(bench, path: str, header: str = "") -> tuple[int, bytes]:
    async with bench.client() as client:
        found = await client.request("GET", path, headers=f"Authorization: {header}\r\n" if header else "")
        return found.status, found.body


@pytest.mark.parametrize(
    ("path", "header", "status"),
    [
        ("/v0/watch/x?token=reader", "", 200),
        ("/v0/watch/x?a=1&token=reader&token=wrong", "", 200),  # the first counts
        ("/v0/watch/x?token=wrong&token=reader", "", 401),
        ("/v0/watch/x?token=a%2Bb%2Fc", "", 200),
        ("/v0/watch/x?token=a+b/c", "", 401),  # a plus is a space
        ("/v0/watch/x?token=wrong", "Bearer reader", 200),  # a valid header wins
        ("/v0/watch/x?token=writer", "Bearer reader", 200),
        ("/v0/topics/mine.q/work?token=rw", "Bearer reader", 403),
        ("/v0/watch/x?token=reader", "Bearer wrong", 200),
        ("/v0/watch/x?token=", "", 401),
        ("/v0/watch/x", "", 401),
        ("/v0/topics/mine.q/work?token=rw", "", 200),
        ("/v0/topics/mine.q/work?token=reader", "", 403),
        ("/v0/topics/theirs.q/work?token=rw", "", 403),
        ("/v0/topics/mine.q?token=full", "", 401),  # no stream
    ],
)
async def test_tokens_in_the_query_of_streams(path, header, status):
    async with serving(door=Door(ring())) as bench:
        bench.server.gateway.routes = STREAMS
        assert (await ask(bench, path, header))[0] == status


async def test_a_stream_counts_as_a_stream_and_not_as_a_request(tmp_path):
    board = Board.create(str(tmp_path / "board"), shards=1, gateways=1, keys=len(ENTRIES))
    streams = StreamSlots(board, 0, Caps(sse_connections_per_key=1))
    async with serving(door=Door(ring(), requests=RequestSlots(board, 0, 1), streams=streams)) as bench:
        bench.server.gateway.routes = STREAMS
        board.add_to_key(0, 0, "key_requests", 1)
        assert (await ask(bench, "/v0/topics/a", "Bearer full"))[0] == 429
        assert (await ask(bench, "/v0/watch/x", "Bearer full"))[0] == 200
        with streams.take(0):
            status, body = await ask(bench, "/v0/watch/x", "Bearer full")
            assert (status, b"max_sse_connections_per_key" in body) == (429, True)
        assert (await ask(bench, "/v0/watch/x", "Bearer full"))[0] == 200
        assert board.total("streams") == 0


@pytest.mark.parametrize("probe_auth", [False, True])
async def test_probes(probe_auth):
    async with serving(door=Door(ring(), probe_auth=probe_auth)) as bench:
        for path in ("/v0/health", "/healthz", "/v0/ready", "/readyz"):
            assert (await ask(bench, path))[0] == (401 if probe_auth else 200)
            assert (await ask(bench, path, "Bearer writer"))[0] == 200


async def test_nobody_is_let_in_by_mistake():
    """A request that came past the transports has no visitor, and a route cannot be without a line in the table."""
    asked = Request("GET", b"/v0/watch/x", b"", {}, QuartBody(None))
    with pytest.raises(AssertionError):
        Door().admit(STREAMS.table[0], (b"x",), asked)
    with pytest.raises(KeyError):
        Route("GET", "/v0/new", answer, "new")
    assert "new" not in ROUTE_SCOPES


def test_without_keys_everybody_is_let_in():
    door = Door()
    asked = Request("GET", b"/", b"", {b"authorization": b"x"}, QuartBody(None), visitor=door.visitor())
    door.admit(STREAMS.table[0], (b"x",), asked)
    assert (asked.principal.index, asked.name) == (-1, "x")


def test_several_authorization_headers_are_none():
    once = (b"authorization", b"Bearer full")
    assert header_map([once, (b"x", b"1"), (b"x", b"2")]) == {b"authorization": b"Bearer full", b"x": b"2"}
    twice = header_map([once, (b"x", b"1"), once])
    door = Door(ring())
    asked = Request("GET", b"/", b"", twice, QuartBody(None), visitor=door.visitor())
    with pytest.raises(TopicsError) as refused:
        door.admit(STREAMS.table[2], (b"x",), asked)
    assert refused.value.code == "unauthorized"


@pytest.mark.parametrize("path", ["/v0/topics/a", "/v0/topics/a/delete", "/v0/topics/a/nothing", "/v0/topics"])
@pytest.mark.parametrize(("key", "status"), [("wrong", 401), ("reader", 403), ("full", 413)])
async def test_nobody_is_told_to_send_a_body_that_will_be_refused(path, key, status):
    headers = f"Authorization: Bearer {key}\r\nExpect: 100-continue\r\n"
    status = {"/v0/topics/a/nothing": 404, "/v0/topics": 405}.get(path, status)
    async with serving(door=Door(ring()), body_bytes=100) as bench, bench.client() as client:
        await client.send(request("POST", path, b"x" * 101, headers)[:-101])
        found = await client.response()
        assert (found.status, found.closes) == (status, True)


async def test_a_refused_body_is_read_away_so_that_the_client_sees_why():
    """Closing while it still sends would reset the connection, and the answer with it."""
    for path in ("/v0/topics/a", "/v0/topics/a/delete"):
        async with serving(door=Door(ring()), body_bytes=8_000_000) as bench, bench.client() as client:
            await client.send(request("POST", path, b"x" * 7_000_000))
            found = await client.response()
            assert (found.status, found.closes) == (401, True)
