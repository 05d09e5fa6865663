"""`topics tail` over everything that breaks a connection: nothing is lost, nothing comes twice."""

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Commands
from topics.cli.event_stream import Event, parse
from topics.client import Client
from topics.testing.server import Server


@contextmanager
def following(topics: Commands, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = topics.start("tail", *arguments)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def lines(process: subprocess.Popen[str], count: int) -> list[dict[str, Any]]:
    assert process.stdout is not None
    return [json.loads(process.stdout.readline()) for _ in range(count)]


def test_it_goes_on_over_a_killed_gateway_a_killed_shard_and_a_restarted_server(tmp_path: Path) -> None:
    with Server(tmp_path / "s", shards=1) as server:
        server.start().wait_ready()
        topics = Commands(server, tmp_path)
        topics.ok("topic", "create", "t", "--durability", "fsync")
        sent = 0

        def append(count: int) -> list[int]:
            nonlocal sent
            records = [{"data": n} for n in range(count)]
            with Client(server.url) as client:  # tries again while a gateway has not yet found a shard that came back
                client.append("t", records)
            sent += count
            return list(range(sent - count + 1, sent + 1))

        wanted = append(3)
        with following(topics, "t", "--from-seq", "0") as process:
            assert [line["$seq"] for line in lines(process, 3)] == wanted
            for kind in ("gateway", "shard"):
                server.wait_back(kind, 0, server.kill(kind, 0))
                wanted = append(2)
                assert [line["$seq"] for line in lines(process, 2)] == wanted
            port = server.port
            assert server.stop() == 0
            server.start(port=port).wait_ready()
            wanted = append(2)
            assert [line["$seq"] for line in lines(process, 2)] == wanted


def test_a_session_that_is_gone_is_begun_anew_where_it_ended(tmp_path: Path) -> None:
    with Server(tmp_path / "s", shards=1, watch_session_ttl_ms=1) as server:
        server.start().wait_ready()
        topics = Commands(server, tmp_path)
        topics.ok("topic", "append", "t", "1", "2")
        with following(topics, "t", "--from-seq", "0") as process:
            assert [line["$seq"] for line in lines(process, 2)] == [1, 2]
            server.wait_back("gateway", 0, server.kill("gateway", 0))
            topics.ok("topic", "append", "t", "3")
            assert [line["$seq"] for line in lines(process, 1)] == [3]


def test_several_topics_from_their_own_places(topics: Commands) -> None:
    topics.ok("topic", "append", "a", "1", "2", "3", "--tag", "x")
    topics.ok("topic", "append", "b", "7")
    out = topics.ok("tail", "a=1", "b", "--from-seq", "0", "--tags", "--until-caught-up", "--events")
    found = [json.loads(line) for line in out.splitlines()]
    records = [(line["topic"], line["$seq"], line["data"], line.get("$tag")) for line in found if "$seq" in line]
    assert sorted(records) == [("a", 2, 2, "x"), ("a", 3, 3, "x"), ("b", 1, 7, None)]
    assert {line["topic"] for line in found if line.get("event") == "caught-up"} == {"a", "b"}


def test_only_new_records_by_default_and_an_end_by_count(topics: Commands) -> None:
    topics.ok("topic", "append", "new", "1")
    with following(topics, "new", "--events", "--count", "2") as process:
        assert lines(process, 1)[0]["event"] == "caught-up"
        topics.ok("topic", "append", "new", "2", "3", "4")
        assert [line["data"] for line in lines(process, 2) if "data" in line] == [2, 3]
        assert process.wait(30) == 0


def test_loss_and_the_end_of_a_topic_are_lines(topics: Commands) -> None:
    topics.ok("topic", "create", "gone", "--cap-records", "1")
    topics.ok("topic", "append", "gone", "1", "2", "3")
    with following(topics, "gone", "--from-seq", "0") as process:
        lost, record = lines(process, 2)
        assert (lost["event"], lost["gap_from"], lost["gap_to"]) == ("tombstone", 1, 2)
        assert record["$seq"] == 3
        topics.ok("topic", "rm", "gone", "--yes")
        assert lines(process, 1)[0]["event"] == "topic-deleted"
        assert process.wait(30) == 0


def test_what_is_not_there_is_a_failure_or_left_out(topics: Commands) -> None:
    topics.ok("topic", "append", "there", "1")
    assert topics("tail", "there", "notthere").returncode == 3
    out = topics.ok("tail", "there", "notthere", "--lenient", "--from-seq", "0", "--until-caught-up")
    assert [json.loads(line)["topic"] for line in out.splitlines()] == ["there"]


def test_ctrl_c_ends_it_with_130(topics: Commands) -> None:
    topics.ok("topic", "append", "stop", "1")
    process = topics.start("tail", "stop", "--from-seq", "0")
    lines(process, 1)
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=30) == ("", "")
    assert process.returncode == 130


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_events_whatever_the_chunks(size: int) -> None:
    text = b'retry: 2000\n\n: hb 1\n\nid: abc\nevent: record\ndata: {"a":\ndata:  1}\n\n'
    text += b"event: x\r\ndata:y\r\n\r\ndata: cut"
    chunks = [text[n : n + size] for n in range(0, len(text), size)]
    assert list(parse(chunks)) == [Event("record", b'{"a":\n 1}', "abc"), Event("x", b"y", None)]
