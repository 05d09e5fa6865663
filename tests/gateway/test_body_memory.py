"""Large bodies under way in one gateway: bounded in sum, refused beyond it, given back whatever happens."""

import gzip
import json

import pytest
import trio

from tests.gateway.harness import chunked, request, serving, until
from tests.gateway.test_handover import H2Client
from topics import limits
from topics.errors import TopicsError
from topics.gateway.access import Door
from topics.gateway.slots import RequestSlots
from topics.gateway.visitor import BodyMemory, Visitor
from topics.keys import ConnectionKey, KeyRing

LARGE = 600_000
BODY = b'"' + b"x" * (LARGE - 2) + b'"'
ROUTES = ("/v0/topics/a", "/v0/topics/a/delete")  # hot, and through Quart


def small_memory() -> tuple[Door, BodyMemory]:
    memory = BodyMemory(1_000_000)
    return Door(memory=memory), memory


def refused(body: bytes) -> None:
    error = json.loads(body)["error"]
    assert error["code"] == "throttled"
    assert (error["detail"]["limit"], error["detail"]["max"]) == ("max_body_memory", 1_000_000)


@pytest.mark.parametrize("route", ROUTES)
async def test_a_body_that_does_not_fit_is_refused_before_it_is_read(route):
    door, memory = small_memory()
    async with serving(door=door) as bench, bench.client() as other, bench.client() as client:
        await client.send(request("POST", "/v0/topics/a", BODY)[:-1])
        await until(lambda: memory.used == LARGE)
        await other.send(request("POST", route, BODY)[: -len(BODY)])
        answer = await other.response()
        assert (answer.status, answer.headers[b"retry-after"], answer.closes) == (429, b"1", True)
        refused(answer.body)
        async with bench.client() as third:
            assert (await third.request("POST", route, b"1" * limits.HTTP_FREE_BODY_BYTES)).status == 200
        await client.send(BODY[-1:])
        assert (await client.response()).status == 200
        await until(lambda: memory.used == 0)
        assert (await client.request("POST", route, BODY)).status == 200
    await trio.lowlevel.checkpoint()
    assert memory.used == 0


@pytest.mark.parametrize("route", ROUTES)
async def test_a_body_of_unknown_length_is_counted_as_it_comes(route):
    door, memory = small_memory()
    async with serving(door=door, body_bytes=4_000_000) as bench:
        async with bench.client() as client:
            await client.send(request("POST", "/v0/topics/a", BODY)[:-1])
            await until(lambda: memory.used == LARGE)
            async with bench.client() as other:
                await other.send(chunked("POST", route, BODY[:200_000], BODY)[:-5])
                answer = await other.response()
                assert answer.status == 429
                refused(answer.body)
            await until(lambda: memory.used == LARGE)
        await until(lambda: memory.used == 0)
        async with bench.client() as other:
            await other.send(chunked("POST", route, BODY[:200_000], BODY[200_000:]))
            assert (await other.response()).status == 200


@pytest.mark.parametrize("route", ROUTES)
async def test_what_is_inflated_counts(route):
    door, memory = small_memory()
    headers = "Content-Encoding: gzip\r\n"
    async with serving(door=door, body_bytes=4_000_000) as bench, bench.client() as client:
        answer = await client.request("POST", route, gzip.compress(b"1" * 1_040_000), headers)
        assert answer.status == 429
        refused(answer.body)
        assert (await client.request("POST", route, gzip.compress(b"1" * 900_000), headers)).status == 200
        await until(lambda: memory.used == 0)


async def test_http_2():
    """Without a length, the body is found out to be too much while it comes; the connection lives on."""
    door, memory = small_memory()
    async with serving(door=door) as bench, bench.client() as client, bench.client() as slow:
        http = H2Client(client)
        http.h2.initiate_connection()
        await slow.send(request("POST", "/v0/topics/a", b"1" * 980_000)[:-1])
        await until(lambda: memory.used == 980_000)
        headers = [(":method", "POST"), (":path", "/v0/topics/a"), (":scheme", "http"), (":authority", "test")]
        http.h2.send_headers(1, [*headers, ("content-type", "application/json")])
        left = 200_000
        while left:
            size = min(left, 10_000, http.h2.local_flow_control_window(1))
            if not size:
                await client.more()
                data, client.buffer = client.buffer, b""
                for event in http.h2.receive_data(data):
                    http.handle(event)
                continue
            left -= size
            http.h2.send_data(1, b"1" * size, end_stream=not left)
            await http.flush()
        answer, body = await http.answer(1)
        assert answer[":status"] == "429"
        refused(body)
        assert (await http.request("POST", "/v0/topics/a", b"1" * 10_000))[0][":status"] == "200"
        await until(lambda: memory.used == 980_000)


def test_a_reservation_only_grows_and_goes_at_once():
    memory = BodyMemory(300_000)
    visitor, other = (Visitor(ConnectionKey(KeyRing(())), RequestSlots(), memory) for _ in range(2))
    visitor.reserve(10)
    assert memory.used == 0
    for size in (100_000, 90_000, 200_000):
        visitor.reserve(size)
    assert memory.used == 200_000
    with pytest.raises(TopicsError):
        other.reserve(100_001)
    other.reserve(100_000)
    visitor.leave()
    visitor.leave()
    assert memory.used == 100_000
