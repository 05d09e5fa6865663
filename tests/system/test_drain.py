"""SIGTERM of a whole server with requests under way, and a start that cannot be."""

import json
import os
import socket
import threading
from contextlib import suppress

import httpx
import pytest

from tests.system.client import Client, Crew, Upload
from topics.testing.server import wait_until

STOP_MS = 20_000


def ask(server, path) -> tuple[int, dict]:
    """On a new connection. A gateway that had nothing to wait for may have closed its port just then."""
    for _ in range(3):
        with suppress(httpx.TransportError):
            answer = httpx.get(f"{server.url}{path}")
            break
    assert answer.headers["connection"] == "close"
    return answer.status_code, answer.json()


def drains(server) -> bool:
    """Whether it ends, but is still there for what is under way."""
    try:
        answer = httpx.get(f"{server.url}/v0/ready")
    except (httpx.ConnectError, httpx.ReadError, httpx.RemoteProtocolError):
        return False  # of one gateway the sockets were just being closed
    return answer.status_code == 503 and answer.json()["error"]["code"] == "shutting_down"


def wait_read(client, topic):
    """Until the poll has arrived at its shard."""
    path = f"/v0/topics/{topic}?touch=false"
    wait_until(lambda: client.once("GET", path).json()["last_read_ts"], "the poll's arrival")


@pytest.fixture
def server(serve):
    return serve(gateways=2, stop_ms=STOP_MS)


def test_open_requests_finish_and_new_ones_are_refused(server):
    crew, polls = Crew(), []

    def poll(topic):
        polls.append(httpx.post(f"{server.url}/v0/topics/{topic}/diff", json={"wait_ms": 30_000}, timeout=30))

    with Client(server) as client:
        topics = [f"t{n}" for n in range(4)]
        for topic in topics:
            client.put(topic, durability="fsync")
            crew.start(poll, topic)
        for topic in topics:
            wait_read(client, topic)
        uploads = [Upload(server, "slow", {"records": [{"data": n}]}) for n in range(6)]  # over both gateways
        server.process.terminate()
        crew.join()  # the polls are answered at once
        for answer in polls:
            assert (answer.status_code, answer.json()["records"]) == (200, [])
            assert answer.headers["connection"] == "close"
        wait_until(lambda: drains(server), "the drain")
        assert server.process.poll() is None  # it waits for the uploads
        for _ in range(8):  # whichever gateway has them
            for path in ("/v0/ready", "/v0/topics", "/v0/topics/t0"):
                status, body = ask(server, path)
                assert (status, body["error"]["code"]) == (503, "shutting_down")
                assert body["error"]["detail"]["retry_after_ms"] > 0
            assert ask(server, "/v0/health")[0] == 200
        assert server.status()["phase"] == "draining"
        seqs = []
        for upload in uploads:
            head, answer = upload.finish()
            assert head.split()[1] in (b"200", b"201"), head
            assert b"connection: close" in head
            seqs += answer["seqs"]
    assert server.wait_end() == 0
    assert sorted(seqs) == [1, 2, 3, 4, 5, 6]
    assert not server.holders()
    assert not server.port_file.exists()
    server.start().wait_ready()
    with Client(server) as client:
        records = client.read_all("slow")[0]
    assert {record["$seq"] for record in records} == set(seqs)


def test_a_request_that_arrives_in_the_drain_is_refused_or_not_taken(server):
    """Whoever sent it knows: by 503, or because the answer before it said that the connection closes."""
    health = b"GET /v0/health HTTP/1.1\r\nHost: x\r\n\r\n"
    listing = b"GET /v0/topics HTTP/1.1\r\nHost: x\r\n\r\n"
    with Client(server) as client, socket.create_connection(("127.0.0.1", server.port), timeout=30) as begun:
        client.put("t")
        begun.sendall(health + listing[:10])  # one packet: when the first is answered, the second has begun
        assert begun.recv(65536).startswith(b"HTTP/1.1 200")
        upload = Upload(server, "t", {"records": [{"data": 1}]})
        server.process.terminate()
        wait_until(lambda: drains(server), "the drain")
        begun.sendall(listing[10:])
        head, _, body = b"".join(iter(lambda: begun.recv(65536), b"")).partition(b"\r\n\r\n")
        assert b"connection: close" in head
        if not head.startswith(b"HTTP/1.1 408"):  # we were too slow for its patience in a drain
            assert head.startswith(b"HTTP/1.1 503")
            assert b"retry-after: " in head
            assert json.loads(body)["error"]["code"] == "shutting_down"
        upload.sock.sendall(upload.body[10:] + listing)
        text = b"".join(iter(lambda: upload.sock.recv(65536), b""))
        upload.sock.close()
    assert text.startswith(b"HTTP/1.1 200")
    assert b"connection: close" in text
    assert text.count(b"HTTP/1.1 ") == 1
    assert server.wait_end() == 0


def test_an_upload_that_never_ends_does_not_keep_the_server(serve):
    server = serve(stop_ms=1500)
    with Client(server) as client:
        client.put("t", durability="fsync")
        assert client.append("t", {"records": [{"data": "acked"}]})["seqs"] == [1]
        upload = Upload(server, "t", {"records": [{"data": "never"}]})
        assert server.stop() == 0
        assert upload.sock.recv(100) == b""
        upload.sock.close()
        server.start().wait_ready()
        assert [record["data"] for record in client.read_all("t")[0]] == ["acked"]


@pytest.mark.parametrize("durability", ["fsync", "disk"])
def test_no_acked_write_is_lost_by_a_clean_stop(server, durability):
    """Also on a disk topic: a clean stop syncs what was acked."""
    acked: list[tuple[int, int]] = []
    lock, crew = threading.Lock(), Crew()
    with Client(server) as client:
        client.put("t", durability=durability)

    def write(number):
        with Client(server) as mine:
            while True:
                try:
                    answer = mine.once("POST", "/v0/topics/t", {"records": [{"data": number}, {"data": number}]})
                except httpx.TransportError:
                    return
                if answer.status_code == 503:
                    assert answer.json()["error"]["code"] == "shutting_down"
                    return
                assert answer.status_code == 200, answer.text
                with lock:
                    acked.extend((seq, number) for seq in answer.json()["seqs"])

    for number in range(8):
        crew.start(write, number)
    wait_until(lambda: len(acked) > 200 or crew.failure, "some writes")
    assert server.stop() == 0
    crew.join()
    server.start().wait_ready()
    with Client(server) as client:
        records, gaps = client.read_all("t")
    there = {(record["$seq"], record["data"]) for record in records}
    assert not gaps
    assert set(acked) <= there
    assert sorted(seq for seq, _ in there) == list(range(1, len(there) + 1))


def test_a_second_server_on_the_same_data_fails_at_once_and_the_first_goes_on(serve):
    first = serve("one")
    with Client(first) as client:
        client.put("t", durability="fsync")
        before = first.status()["children"]
        for options in ({}, {"shards": 5}, {"port": first.port}):
            second = serve.make("two", data_dir=first.data, **options).start()
            assert second.wait_end() == 1
            assert (
                f"another server (pid {first.process.pid}) uses the data directory {first.data}"
                in second.lines()[-1]["msg"]
            )
            assert not second.port_file.exists()
        assert client.append("t", {"records": [{"data": 1}]})["seqs"] == [1]
        assert [child["pid"] for child in first.status()["children"]] == [child["pid"] for child in before]
        assert first.holder()["pid"] == first.process.pid
    assert first.stop() == 0


def test_a_busy_port_is_named_and_its_holder_is_not_disturbed(serve):
    first = serve("one")
    second = serve.make("two", port=first.port).start()
    assert second.wait_end() == 1
    assert f"port {first.port} of 127.0.0.1 is in use" in second.lines()[-1]["msg"]
    assert not list(second.data.glob("shard-*/wal"))  # no child was started
    with Client(first) as client:
        assert client.append("t", {"records": [{"data": 1}]})["seqs"] == [1]
    assert not os.path.exists(second.port_file)


def test_many_starts_at_once_on_one_data_directory_leave_exactly_one_server(serve):
    servers = [serve.make(f"s{n}", data_dir=serve.make("shared").data) for n in range(4)]
    for server in servers:
        server.start()
    wait_until(lambda: sum(server.process.poll() is not None for server in servers) == 3, "all but one to end")
    winner = next(server for server in servers if server.process.poll() is None)
    winner.wait_ready()
    for server in servers:
        if server is not winner:
            assert server.process.returncode == 1
            assert "uses the data directory" in server.text()
    with Client(winner) as client:
        assert client.append("t", {"records": [{"data": 1}]})["seqs"] == [1]
    assert winner.stop() == 0
