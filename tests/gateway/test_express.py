"""Requests without a task: taken where they are usual, left to the task where they are not, and never mixed up.

The first request of a connection is always its task's; `express_client` has that behind it.
"""

import gzip
import json
from contextlib import asynccontextmanager

import pytest
import trio

from tests.gateway.harness import chunked, request, serving, until
from topics.errors import TopicsError
from topics.gateway.server import Patience
from topics.rpc.open_calls import Reply

HOT = "/v0/topics/a"
COLD = "/v0/topics/a/delete"
BODY = b'{"records":[{"data":1}]}'


@asynccontextmanager
async def express_client(**options):
    async with serving(**options) as bench, bench.client() as client:
        assert (await client.request("GET", "/v0/health")).status == 200
        yield bench, client


async def takes_the_lane(bench, client):
    """The task may not sleep yet when the next request comes, and then takes it; but not for ever."""
    begun = bench.shards.begun
    for _ in range(20):
        assert (await client.request("POST", HOT, BODY)).status == 200
        if bench.shards.begun > begun:
            return
        await trio.sleep(0.01)
    raise AssertionError("every request was left to the task")


class Gate:
    """For `behave`: calls wait until they are let through."""

    def __init__(self):
        self.opened = trio.Event()
        self.waiting = 0

    async def __call__(self, name, method, head, body):
        self.waiting += 1
        await self.opened.wait()
        return Reply({"perf": {}}, b'{"size":%d' % len(body))


async def test_a_usual_request_needs_no_task():
    async with express_client() as (bench, client):
        (connection,) = bench.server.connections
        for number in range(1, 50):
            answer = await client.request("POST", HOT, BODY)
            assert json.loads(answer.body)["size"] == len(BODY)
            assert (answer.status, bench.shards.begun) == (200, number)
        assert connection.idle


async def test_it_comes_back_after_requests_that_need_one():
    async with express_client() as (bench, client):
        for path, headers in ((COLD, ""), (HOT, "Content-Encoding: gzip\r\n")):
            body = gzip.compress(BODY) if headers else BODY
            assert (await client.request("POST", path, body, headers)).status == 200
            await takes_the_lane(bench, client)


@pytest.mark.parametrize("cut", [3, 20, -10, -1])
async def test_a_request_in_two_pieces(cut):
    whole = request("POST", HOT, BODY)
    async with express_client() as (bench, client):
        await client.send(whole[:cut])
        await until(lambda: not next(iter(bench.server.connections)).idle)
        await client.send(whole[cut:])
        assert (await client.response()).status == 200
        await takes_the_lane(bench, client)


async def test_requests_in_one_piece_are_answered_in_order():
    bodies = [b'{"records":[{"data":%d}]}' % 10**size for size in range(5)]
    async with express_client() as (_, client):
        await client.send(b"".join(request("POST", HOT, body) for body in bodies))
        for body in bodies:
            assert json.loads((await client.response()).body)["size"] == len(body)


@pytest.mark.parametrize("behind", [HOT, COLD])
async def test_a_request_that_comes_during_another_waits_its_turn(behind):
    async with express_client() as (bench, client):
        bench.shards.behave = gate = Gate()
        await client.send(request("POST", HOT, BODY))
        await until(lambda: gate.waiting == 1)
        await client.send(request("POST", behind, b"{}"))
        (connection,) = bench.server.connections
        await until(lambda: connection._unread)
        assert gate.waiting == 1
        gate.opened.set()
        assert [json.loads((await client.response()).body)["size"] for _ in range(2)] == [len(BODY), 2]
        await takes_the_lane(bench, client)


async def test_an_answer_that_the_kernel_does_not_take_at_once():
    body = b'{"x":"' + bytes(range(97, 123)) * 400_000 + b'"'

    async def large(*_):
        return Reply({"perf": {}}, body)

    async with express_client() as (bench, client):
        bench.shards.behave = large
        for _ in range(3):
            await client.send(request("POST", f"{HOT}/diff", b"{}"))
            assert (await client.response()).body.startswith(body + b',"performance":')
        assert bench.shards.begun == 3


async def test_a_client_that_does_not_take_its_answer_is_cut_off():
    async def large(*_):
        return Reply({"perf": {}}, bytes(64 << 20))

    async with express_client(patience=Patience(sweep_s=0.01, send_s=0.05)) as (bench, client):
        bench.shards.behave = large
        await client.send(request("POST", f"{HOT}/diff", b"{}"))
        await until(lambda: not bench.server.connections)
        assert bench.shards.begun == 1


async def test_answers_are_packed_for_those_who_ask():
    async def compressible(*_):
        return Reply({"perf": {}}, b'{"x":"' + b"y" * 50_000 + b'"')

    async with express_client() as (bench, client):
        bench.shards.behave = compressible
        for _ in range(2):
            answer = await client.request("POST", f"{HOT}/diff", b"{}", "Accept-Encoding: gzip\r\n")
            assert answer.headers[b"content-encoding"] == b"gzip"
            assert json.loads(gzip.decompress(answer.body))["x"] == "y" * 50_000
        assert bench.shards.begun == 2


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (request("POST", "/v0/topics/%00", BODY), 400),
        (request("POST", f"{HOT}?return_seqs=perhaps", BODY), 400),
        (request("POST", HOT, BODY).replace(b"application/json", b"text/plain"), 415),
        (chunked("POST", HOT, BODY, headers="Content-Type: text/plain\r\n"), 415),
        (request("POST", HOT, b"x" * 2000), 413),
    ],
)
async def test_refusals_do_not_end_the_connection(sent, status):
    async with express_client(body_bytes=1000) as (bench, client):
        for _ in range(2):
            await client.send(sent)
            answer = await client.response()
            assert answer.status == status
            assert {"code", "message"} <= json.loads(answer.body)["error"].keys()
        assert bench.shards.calls == []
        assert (await client.request("POST", HOT, BODY)).status == 200


@pytest.mark.parametrize(("error", "status"), [(TopicsError("not_ready", "down"), 503), (ValueError("a bug"), 500)])
async def test_what_the_shard_refuses(error, status):
    async def refuse(*_):
        raise error

    async with express_client() as (bench, client):
        bench.shards.behave = refuse
        for _ in range(3):
            assert (await client.request("POST", HOT, BODY)).status == status
        assert bench.shards.begun == 3


async def test_a_peer_without_room_needs_a_task():
    async with express_client() as (bench, client):
        bench.shards.nursery = None
        for _ in range(3):
            assert (await client.request("POST", HOT, BODY)).status == 200
        assert (bench.shards.begun, len(bench.shards.calls)) == (0, 3)


async def test_connection_close_is_kept():
    async with express_client() as (bench, client):
        answer = await client.request("POST", HOT, BODY, "Connection: close\r\n")
        assert (answer.status, answer.closes, bench.shards.begun) == (200, True, 1)
        assert await client.rest() == b""


async def test_a_client_that_is_gone_gets_no_answer(caplog):
    async with express_client() as (bench, client):
        bench.shards.behave = gate = Gate()
        await client.send(request("POST", HOT, BODY))
        await until(lambda: gate.waiting == 1)
        await client.stream.aclose()
        gate.opened.set()
        await until(lambda: not bench.server.connections)
    assert not caplog.records


async def test_idle_time_begins_with_the_answer():
    async with express_client(patience=Patience(sweep_s=0.01, idle_s=0.05)) as (bench, client):
        bench.shards.behave = gate = Gate()
        await client.send(request("POST", HOT, BODY))
        await until(lambda: gate.waiting == 1)
        await trio.sleep(0.2)
        assert len(bench.server.connections) == 1
        gate.opened.set()
        assert (await client.response()).status == 200
        assert await client.rest() == b""


async def test_a_drain_lets_it_finish():
    async with express_client() as (bench, client):
        bench.shards.behave = gate = Gate()
        await client.send(request("POST", HOT, BODY))
        await until(lambda: gate.waiting == 1)
        bench.stop.set()
        await until(lambda: bench.server.draining)
        gate.opened.set()
        answer = await client.response()
        assert (answer.status, answer.closes) == (200, True)
        await until(bench.done.is_set)


async def test_a_drain_has_an_end():
    async with express_client(grace_s=0.05) as (bench, client):
        bench.shards.behave = bench.shards.hang
        await client.send(request("POST", HOT, BODY))
        await bench.shards.waiting.wait()
        bench.stop.set()
        await until(bench.done.is_set)
        await until(lambda: bench.shards.cancelled)


async def test_a_bug_in_the_answer_ends_the_connection_and_nothing_else(caplog):
    async def nonsense(*_):
        return Reply({"perf": {}}, None)  # type: ignore[arg-type]

    async with express_client() as (bench, client), bench.client() as other:
        bench.shards.behave = nonsense
        await client.send(request("POST", HOT, BODY))
        assert await client.rest() == b""
        bench.shards.behave = None
        for _ in range(2):
            assert (await other.request("POST", HOT, BODY)).status == 200
    assert "failed" in caplog.text
