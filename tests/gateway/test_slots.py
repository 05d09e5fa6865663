"""Counts with caps: exact over processes, given back whatever happens."""

import subprocess
import sys

import pytest
import trio

from tests.gateway.harness import request, serving, until
from tests.gateway.test_handover import H2Client
from topics.board import Board
from topics.errors import TopicsError
from topics.gateway.access import Door
from topics.gateway.server import Patience
from topics.gateway.slots import RequestSlots, StreamSlots
from topics.keys import KeyRing, parse_entries
from topics.settings import Caps

KEY = "Authorization: Bearer one\r\n"


@pytest.fixture
def path(tmp_path) -> str:
    return str(tmp_path / "board")


@pytest.fixture
def board(path) -> Board:
    return Board.create(path, shards=1, gateways=2, keys=2)


def ring() -> KeyRing:
    return KeyRing(parse_entries([("first", "one"), ("second", "two")]))


def refusal(take, key: int) -> dict:
    with pytest.raises(TopicsError) as refused:
        take(key)
    assert refused.value.code == "throttled"
    return refused.value.detail


# --- requests -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [1, 2, 3, 7])
def test_requests_of_a_key_over_all_gateways(board, most):
    gateways = [RequestSlots(board, index, most) for index in range(2)]
    for n in range(most):
        assert gateways[n % 2].take(1)
    for gateway in gateways:
        assert refusal(gateway.take, 1) == {"limit": "max_inflight_per_key", "max": most, "retry_after_ms": 1000}
    assert board.key_total(1, "key_requests") == most
    assert gateways[1].take(0)  # another key
    gateways[0].give_back(1)
    assert gateways[1].take(1)
    board.clear_gateway(0)
    assert board.key_total(1, "key_requests") == most // 2 + 1


def test_a_cap_of_0_counts_nothing(board):
    slots = RequestSlots(board, 0, 0)
    assert not any(slots.take(0) for _ in range(10_000))
    assert board.key_total(0, "key_requests") == 0


RACE = """
import sys
from topics.board import Board, KeyCells
from topics.errors import TopicsError
from topics.gateway.server import Patience
from topics.gateway.slots import RequestSlots
board, gateway, most = Board.open(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
slots, inside = RequestSlots(board, gateway, most), KeyCells(board, gateway, 0, "key_streams")
taken = refused = highest = held = 0
for n in range(6000):
    if held and n % 3 == 2:
        with board.locked():
            inside.add(-1)
        slots.give_back(0)
        held -= 1
        continue
    try:
        slots.take(0)
    except TopicsError:
        refused += 1
        if held:
            with board.locked():
                inside.add(-1)
            slots.give_back(0)
            held -= 1
        continue
    held += 1
    taken += 1
    with board.locked():
        inside.add(1)
        highest = max(highest, inside.total())
for _ in range(held):
    with board.locked():
        inside.add(-1)
    slots.give_back(0)
print(taken, refused, highest)
"""


@pytest.mark.parametrize("most", [3, 40])
def test_the_cap_on_requests_holds_while_gateways_race(path, most):
    """What is inside is counted once more, under the lock: it never exceeds the cap."""
    board = Board.create(path, shards=1, gateways=4, keys=1)
    run = [sys.executable, "-c", RACE, path]
    racers = [subprocess.Popen([*run, str(n), str(most)], stdout=subprocess.PIPE, text=True) for n in range(4)]
    found = [[int(word) for word in racer.communicate()[0].split()] for racer in racers]
    assert max(highest for _, _, highest in found) <= most
    assert all(taken and refused for taken, refused, _ in found)
    assert board.key_total(0, "key_requests") == 0


async def held(board: Board, count: int) -> None:
    await until(lambda: board.key_total(0, "key_requests") == count)


async def test_a_request_holds_its_place_until_its_answer_is_out(board):
    door = Door(ring(), requests=RequestSlots(board, 0, 2))
    async with serving(door=door) as bench, trio.open_nursery() as nursery:
        bench.shards.behave = bench.shards.hang
        for path in ("/v0/topics/a/diff", "/v0/topics/a/delete"):  # hot, and through Quart
            nursery.start_soon(bench.exchange, request("POST", path, b'{"wait_ms":1}', KEY))
        await held(board, 2)
        async with bench.client() as client:
            answer = await client.request("POST", "/v0/topics/a", b"{}", KEY)
            assert (answer.status, answer.headers[b"retry-after"]) == (429, b"1")
            assert b'"detail":{"limit":"max_inflight_per_key","max":2,' in answer.body
            assert (await client.request("GET", "/v0/health", headers=KEY)).status == 200  # nobody is asked there
            bench.shards.behave = None
            assert (await client.request("POST", "/v0/topics/a", b"{}", KEY.replace("one", "two"))).status == 200
        nursery.cancel_scope.cancel()
    assert board.key_total(0, "key_requests") == 0


@pytest.mark.parametrize("route", ["diff", "delete"])
async def test_the_place_of_a_client_that_goes_is_free(board, route):
    async with serving(door=Door(ring(), requests=RequestSlots(board, 0, 1))) as bench:
        bench.shards.behave = bench.shards.hang
        for _ in range(3):
            async with bench.client() as client:
                await client.send(request("POST", f"/v0/topics/a/{route}", b'{"wait_ms":1}', KEY))
                await held(board, 1)
            await held(board, 0)


async def test_the_place_of_a_client_that_stalls_is_free(board):
    door = Door(ring(), requests=RequestSlots(board, 0, 1))
    async with serving(door=door, patience=Patience(body_s=0.05, sweep_s=0.01)) as bench:
        for path in ("/v0/topics/a", "/v0/topics/a/delete"):
            async with bench.client() as client:
                await client.send(request("POST", path, b"{}", KEY)[:-1])
                assert (await client.response()).status == 408
                await held(board, 0)


@pytest.mark.parametrize("error", [ValueError("a bug"), TopicsError("not_ready", "gone")])
async def test_the_place_of_a_request_that_fails_is_free(board, error):
    async def fail(*_):
        raise error

    async with serving(door=Door(ring(), requests=RequestSlots(board, 0, 1))) as bench, bench.client() as client:
        bench.shards.behave = fail
        for path in ("/v0/topics/a", "/v0/topics/a/diff", "/v0/topics/a/delete") * 3:
            assert (await client.request("POST", path, b"{}", KEY)).status in (500, 503)
        assert (await client.request("GET", "/v0/topics/a", headers="Authorization: Bearer no\r\n")).status == 401
        await held(board, 0)


async def test_streams_of_http_2_hold_a_place_each(board):
    async with serving(door=Door(ring(), requests=RequestSlots(board, 0, 3))) as bench:
        bench.shards.behave = bench.shards.hang
        async with bench.client() as client:
            http = H2Client(client)
            http.h2.initiate_connection()
            headers = [(":method", "GET"), (":path", "/v0/topics/a"), (":scheme", "http"), (":authority", "test")]
            headers.append(("authorization", "Bearer one"))
            for stream in (1, 3, 5):
                http.h2.send_headers(stream, headers, end_stream=True)
            await http.flush()
            await held(board, 3)
            http.h2.send_headers(7, headers, end_stream=True)
            await http.flush()
            assert (await http.answer(7))[0][":status"] == "429"
            http.h2.reset_stream(3)
            await http.flush()
            await held(board, 2)
        await held(board, 0)


# --- streams ------------------------------------------------------------------------------------------------------


def test_streams_in_all_and_of_a_key(board):
    caps = Caps(sse_connections=3, sse_connections_per_key=2)
    gateways = [StreamSlots(board, index, caps) for index in range(2)]
    first = gateways[0].take(0)
    second = gateways[1].take(0)
    assert refusal(gateways[0].take, 0)["limit"] == "max_sse_connections_per_key"
    with gateways[0].take(1):
        assert refusal(gateways[1].take, 1) == {"limit": "max_sse_connections", "max": 3, "retry_after_ms": 1000}
        assert (board.total("streams"), board.key_total(0, "key_streams")) == (3, 2)
    second.close()
    second.close()  # once is enough
    assert (board.total("streams"), board.key_total(0, "key_streams")) == (1, 1)
    board.clear_gateway(0)
    assert (board.total("streams"), board.key_total(0, "key_streams")) == (0, 0)
    first.close()  # of a life that is over: not below zero
    assert board.total("streams") == 0


def test_streams_without_keys_or_caps(board):
    slots = StreamSlots(board, 0, Caps(sse_connections=2, sse_connections_per_key=1))
    kept = [slots.take(-1), slots.take(-1)]
    assert refusal(slots.take, -1)["limit"] == "max_sse_connections"
    off = StreamSlots(board, 1, Caps(sse_connections=0, sse_connections_per_key=0))
    kept += [off.take(0) for _ in range(100)]
    assert board.total("streams") == 102
    for slot in kept:
        slot.close()
    assert board.total("streams") == board.key_total(0, "key_streams") == 0


def test_nothing_is_counted_when_the_lock_is_not_to_be_had(path):
    board = Board.create(path, shards=1, gateways=2, keys=1)
    slots = RequestSlots(Board.open(path), 0, most=1)
    streams = StreamSlots(Board.open(path), 0, Caps())
    board.add_to_key(1, 0, "key_requests", 1)
    with board.locked():
        for take in (slots.take, streams.take):
            with pytest.raises(TopicsError) as refused:
                take(0)
            assert refused.value.code == "not_ready"
        board.clear_gateway(1)  # needs no lock
    assert (board.key_total(0, "key_requests"), board.key_total(0, "key_streams"), board.total("streams")) == (0, 0, 0)
    assert slots.take(0)
