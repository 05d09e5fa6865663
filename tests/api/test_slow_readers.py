"""Clients that do not read (API §7.6): they lag, are told, are let go, and hurt nobody else."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.events import WAIT_S, EventStream, eventually, open_stream, watching
from topics.limits import MIB
from topics.testing.server import Server

SMALL = 4096  # of the client's kernel, so that it stalls soon
BIG = "x" * 100_000


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("slow"), gateways=1, slow_consumer_ms=1000, buffer_grace_ms=300) as started:
        yield started.start().wait_ready()


@pytest.fixture(scope="module")
def http(server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=WAIT_S) as client:
        yield client


def append(http, topic, *values):
    answer = http.post(f"/v0/topics/{topic}", json={"records": [{"data": value} for value in values]})
    assert answer.status_code in (200, 201), answer.text


def create(http, topic, **fields):
    return http.post("/v0/watch", json={"topics": {topic: {}}, **fields}).json()["wid"]


def streams(http):
    return http.get("/v0/metrics", headers={"accept": "application/json"}).json()["topics_sse_connections"]


def seqs(events):
    return [record["$seq"] for event in events if event.name == "record" for record in event.data["records"]]


@pytest.mark.parametrize("batch_bytes", [1, 256 * 1024, MIB])
def test_one_that_takes_nothing_is_let_go_and_loses_nothing(http, name, batch_bytes):
    count = 60
    for _ in range(0, count, 5):
        append(http, name, *[BIG] * 5)
    wid = create(http, name, max_batch_bytes=batch_bytes)
    stream = open_stream(http, wid, receive_buffer=SMALL)
    assert eventually(lambda: streams(http) == 1)
    assert eventually(lambda: streams(http) == 0)
    events = stream.rest()  # what was on its way
    if batch_bytes < MIB:  # else the frame under way is larger than what a socket holds, and is cut off
        assert (events[-1].name, events[-1].data["code"]) == ("error", 408)
        assert stream.ended
    got = seqs(events)
    assert len(got) < count
    again = open_stream(http, wid, headers={"last-event-id": stream.last_id} if got else {})
    assert got + seqs(again.until(lambda event: event.name == "caught-up")) == list(range(1, count + 1))
    again.close()


def test_a_session_that_stalled_goes_on_without_an_id_and_loses_nothing(http, name):
    append(http, name, *[BIG] * 60)
    wid = create(http, name)
    stream = open_stream(http, wid, receive_buffer=SMALL)
    assert eventually(lambda: streams(http) == 1)
    assert eventually(lambda: streams(http) == 0)
    got = seqs(stream.rest())
    again = open_stream(http, wid)
    rest = seqs(again.until(lambda event: event.name == "caught-up"))
    assert rest[0] <= got[-1] + 1  # what was under way when it ended may come twice
    assert rest == list(range(rest[0], 61))
    again.close()


def test_one_that_reads_slowly_is_kept(http, name):
    """A frame takes it far longer than the patience of the server."""
    append(http, name, *["x" * 1_000_000] * 2)
    wid = create(http, name, max_batch_bytes=8 * MIB)
    stream = open_stream(http, wid, receive_buffer=SMALL)
    sock, taken, until = stream._sock, 0, time.monotonic() + 2.5
    while time.monotonic() < until:
        stream._raw += (data := sock.recv(20_000))
        taken += len(data)
        time.sleep(0.05)
    assert taken < 2_000_000, "it was to be slow"
    assert seqs(stream.until(lambda event: event.name == "caught-up")) == [1, 2]
    stream.close()


def test_a_stall_on_a_lossy_topic_becomes_a_tombstone(http, name):
    http.put(f"/v0/topics/{name}", json={"cap_records": 10})
    stream = open_stream(http, create(http, name), receive_buffer=SMALL)
    stream.next("caught-up")
    until = time.monotonic() + 0.6  # longer than the grace, shorter than the patience
    while time.monotonic() < until:
        append(http, name, *[BIG] * 5)
    append(http, name, "last")
    events = stream.until(lambda event: event.name == "record" and event.data["records"][-1]["data"] == "last")
    gaps = [event.data for event in events if event.name == "tombstone"]
    assert [gap["reason"] for gap in gaps][:1] == ["from_seq_too_old"]
    seen = set(seqs(events))
    lost = {seq for gap in gaps for seq in range(gap["gap_from"], gap["gap_to"] + 1)}
    assert not seen & lost
    assert seen | lost == set(range(1, max(seen) + 1))
    stream.close()


def test_a_crowd_that_does_not_read_costs_little_and_hurts_nobody(tmp_path):
    """200 stalled clients on a topic of 200 MB: what they do not take is not kept for them."""
    with Server(tmp_path, shards=1, gateways=1) as server, ExitStack() as stack:
        server.start().wait_ready()
        gateway = server.child("gateway", 0)["pid"]
        http = stack.enter_context(httpx.Client(base_url=server.url, timeout=WAIT_S))
        for _ in range(10):
            append(http, "big", *["x" * 1_000_000] * 20)
        before = peak_mb(gateway)
        crowd: list[EventStream] = []
        for _ in range(200):
            crowd.append(open_stream(http, create(http, "big"), receive_buffer=SMALL))
            stack.callback(crowd[-1].close)
        watcher = stack.enter_context(watching(http, {"big": {"tail": True}}))
        watcher.next("caught-up")
        for number in range(50):
            append(http, "big", number)
            assert watcher.records(1)[0]["data"] == number
        # A frame of one record (1 MB) for each of them, shared by those who stand at the same place, and its rest.
        assert peak_mb(gateway) - before < 300
        for stream in crowd[:3]:
            assert stream.records(3)


def peak_mb(pid: int) -> float:
    lines: dict[str, Any] = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line
    )
    return int(lines["VmHWM"].split()[0]) / 1024
