"""Quart and Hypercorn come later: hot routes do without them, and others wait for them without holding anybody up."""

import subprocess
import sys
import threading

import trio

from tests.gateway.harness import make_app, serving, until
from tests.gateway.test_handover import H2Client

ROUNDS = """
import sys
import trio
from tests.gateway.harness import serving

HOT = [("GET", "/v0/health"), ("GET", "/v0/ready"), ("POST", "/v0/topics/a"), ("POST", "/v0/topics/a/diff"),
       ("POST", "/v0/topics/a/claim"), ("POST", "/v0/topics/a/ack"), ("POST", "/v0/topics/-/diff")]

async def main():
    async with serving() as bench, bench.client() as client:
        async def ask(requests):
            for method, path in requests:
                await client.request(method, path, b"{}" if method == "POST" else b"")
            return set(sys.modules)
        first = await ask(HOT)
        print(*sorted({"quart", "hypercorn", "flask", "h2", "wsproto"} & first))
        print(*sorted(await ask(HOT) - first))
        cold = await ask([("GET", "/v0/openapi.json"), ("GET", "/v0/nowhere")])
        print("quart" in cold)
        print(*sorted(await ask([*HOT, ("GET", "/v0/openapi.json")]) - cold))

trio.run(main)
"""


def test_what_has_been_answered_once_imports_nothing_more():
    shown = subprocess.run([sys.executable, "-c", ROUNDS], capture_output=True, text=True, check=True).stdout
    assert shown.split("\n") == ["", "", "True", "", ""]


async def test_hot_requests_are_answered_while_it_is_loaded(monkeypatch):
    go_on = threading.Event()
    async with serving() as bench, bench.client() as cold, bench.client() as h2, bench.client() as hot:
        framework = bench.server.framework
        monkeypatch.setattr(framework, "_make_app", lambda: go_on.wait() and make_app(bench.server.gateway))
        http, answers = H2Client(h2), []
        http.h2.initiate_connection()

        async def ask_cold() -> None:
            answers.append((await cold.request("GET", "/v0/openapi.json")).status)

        async def ask_h2() -> None:
            answers.append(int((await http.request("GET", "/v0/health"))[0][":status"]))

        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask_cold)
                nursery.start_soon(ask_h2)
                await until(framework._asked.is_set)
                for _ in range(10):
                    assert (await hot.request("GET", "/v0/ready")).status == 200
                assert answers == []
                go_on.set()
        finally:
            go_on.set()
        assert answers == [200, 200]


async def test_a_drain_waits_for_a_request_that_waits_for_it(monkeypatch):
    go_on = threading.Event()
    async with serving() as bench, bench.client() as cold:
        framework = bench.server.framework
        monkeypatch.setattr(framework, "_make_app", lambda: go_on.wait() and make_app(bench.server.gateway))
        try:
            async with trio.open_nursery() as nursery:

                async def ask() -> None:
                    assert (await cold.request("GET", "/v0/openapi.json")).status == 503

                nursery.start_soon(ask)
                await until(framework._asked.is_set)
                bench.stop.set()
                await until(lambda: bench.server.draining)
                go_on.set()
        finally:
            go_on.set()
        await bench.done.wait()


async def test_a_server_that_nobody_asks_for_it_ends_without_it():
    async with serving() as bench:
        bench.stop.set()
        await bench.done.wait()
        assert bench.server.framework._app is None
