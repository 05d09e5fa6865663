"""The gateway as a process: readiness, drain, lifeline, restart."""

import json
import signal
import socket
import subprocess
import sys
import threading

import httpx
import trio

from tests.api.instance import WAIT_S, envelope, wait_for
from topics.rpc import Peer, RpcError

ONE = {"records": [{"data": 1}]}


def health(instance):
    """What the supervisor would ask."""

    async def ask():
        async with trio.open_nursery() as nursery:
            try:
                reply = await Peer(str(instance.run / "gateway-0.sock"), nursery).call("health", {}, deadline_ms=1000)
            except RpcError:
                return None
            finally:
                nursery.cancel_scope.cancel()
            return reply.head

    return trio.run(ask)


def test_it_reports_its_readiness(fresh):
    instance = fresh()
    instance.start_gateway()
    assert wait_for(lambda: health(instance), "the gateway")["ready"] is True
    assert instance.get("/v0/health").status_code == 200


def test_sigterm_drains(fresh):
    """A long-poll is answered, an idle connection closes, exit 0, and nothing is left behind."""
    instance = fresh().start()
    httpx.put(instance.url + "/v0/topics/a", timeout=WAIT_S)
    answers = []

    def poll():
        answers.append(httpx.post(instance.url + "/v0/topics/a/diff", json={"wait_ms": 30_000}, timeout=WAIT_S))

    waiting = threading.Thread(target=poll)
    waiting.start()
    state = instance.url + "/v0/topics/a?touch=false"
    wait_for(lambda: httpx.get(state, timeout=WAIT_S).json()["last_read_ts"], "the poll's arrival")
    with socket.create_connection(("127.0.0.1", instance.port)) as idle:
        assert instance.stop_gateway() == 0
        assert idle.recv(1) == b""
    waiting.join(WAIT_S)
    assert answers[0].status_code == 200
    assert answers[0].json()["records"] == []
    assert answers[0].headers["connection"] == "close"
    assert not (instance.run / "gateway-0.sock").exists()


def test_a_restarted_gateway_serves_connections_that_waited(fresh):
    instance = fresh().start()
    assert instance.stop_gateway() == 0
    with socket.create_connection(("127.0.0.1", instance.port), timeout=WAIT_S) as waiting:
        waiting.sendall(b"GET /v0/health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        instance.start_gateway()
        assert waiting.recv(12) == b"HTTP/1.1 200"


def test_it_ends_with_its_supervisor(fresh):
    instance = fresh().start()
    instance.cut_lifeline()
    assert instance.gateway.wait(WAIT_S) == 0


def test_sigint_is_a_clean_stop_too(fresh):
    instance = fresh().start()
    instance.gateway.send_signal(signal.SIGINT)
    assert instance.gateway.wait(WAIT_S) == 0


def test_writes_under_way_are_answered_before_it_ends(fresh):
    """Every append that was sent gets an answer, or was never taken."""
    instance = fresh().start()
    done, refused = [], []

    def write():
        with httpx.Client(base_url=instance.url, timeout=WAIT_S) as http:
            while True:
                try:
                    answer = http.post("/v0/topics/a", json=ONE)
                except httpx.TransportError:
                    return
                if answer.status_code == 503:
                    refused.append(envelope(answer, 503, "shutting_down"))
                    return
                done.extend(answer.json()["seqs"])

    writers = [threading.Thread(target=write) for _ in range(4)]
    for writer in writers:
        writer.start()
    wait_for(lambda: len(done) > 50, "some writes")
    assert instance.stop_gateway() == 0
    instance.listener.close()
    for writer in writers:
        writer.join(WAIT_S)
    assert sorted(done) == list(range(1, len(done) + 1))


def test_logs_are_json_lines_without_payloads(fresh):
    instance = fresh(env={"TOPICS_LOG_LEVEL": "debug"}).start()
    httpx.post(instance.url + "/v0/topics/a?token=hush", json={"records": [{"data": "payload-text"}]}, timeout=WAIT_S)
    instance.stop_gateway()
    text = instance.log.read_text()
    assert "payload-text" not in text
    assert "hush" not in text
    lines = [json.loads(line) for line in text.splitlines() if '"process":"gateway-0"' in line]
    assert any("POST /v0/topics/a 201" in line["msg"] for line in lines)


def test_http2_over_the_same_port(instance, http, name):
    """With prior knowledge. An early refusal does not cost the connection."""
    http.put(f"/v0/topics/{name}")
    with httpx.Client(base_url=instance.url, http1=False, http2=True, timeout=WAIT_S) as client:
        answer = client.post(f"/v0/topics/{name}", json=ONE)
        assert (answer.http_version, answer.status_code) == ("HTTP/2", 200)
        assert client.post(f"/v0/topics/{name}/diff", json={}).json()["records"][0]["data"] == 1
        assert client.get("/v0/health").status_code == 200
        envelope(client.get("/nope"), 404, "not_found")
        envelope(client.post(f"/v0/topics/{name}", content=b"{}"), 415, "unsupported_media_type")
        envelope(
            client.post(
                f"/v0/topics/{name}", content=b"x" * (4 * 1024 * 1024 + 1), headers={"content-type": "application/json"}
            ),
            413,
            "payload_too_large",
        )
        assert client.get("/v0/health").status_code == 200


def test_help():
    out = subprocess.run([sys.executable, "-m", "topics.gateway", "--help"], capture_output=True, text=True, check=True)
    assert "--boot-fd" in out.stdout
