"""`topics serve` as real processes: start, stop, what goes wrong at start. Gateways are stand-ins."""

import json
import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from tests.supervisor.server_process import STANDIN, ServerProcess, alive, wait_until
from topics.ids import slot_of

EXITS_65 = f"{sys.executable} -c 'import sys; sys.exit(65)'"


@pytest.fixture
def serve(tmp_path):
    """`serve(shards=3)`; whatever still runs at the end is killed."""
    servers = []

    def start(folder="s", **settings):
        (tmp_path / folder).mkdir(exist_ok=True)
        servers.append(ServerProcess(tmp_path / folder, **settings))
        return servers[-1]

    yield start
    for server in servers:
        server.__exit__()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_start_and_stop(serve, number):
    server = serve(gateways=2).wait_ready()
    assert server.port_file.read_text() == f"127.0.0.1:{server.port}"
    known = server.get()
    assert (known["phase"], known["not_ready"], known["shards"], known["slots"]) == ("READY", [], [0, 1], 1024)
    status = server.status()
    assert (status["phase"], status["pid"], status["shards"]) == ("ready", server.process.pid, 2)
    kinds = [(child["kind"], child["index"], child["state"]) for child in status["children"]]
    assert kinds == [("shard", 0, "ready"), ("shard", 1, "ready"), ("gateway", 0, "ready"), ("gateway", 1, "ready")]
    run_dir = server.holder()["run_dir"]
    assert os.stat(run_dir).st_mode & 0o777 == 0o700

    assert server.stop(number) == 0
    assert not server.port_file.exists()
    assert not os.path.exists(run_dir)
    assert (server.data / "LOCK").read_bytes() == b""
    assert not any(alive(pid) for pid in server.pids)
    assert list((server.data / "shard-00").glob("snapshot*"))  # the checkpoint of a clean stop
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", int(status["address"].rpartition(":")[2])))
    lines = server.lines()  # JSON: a file is no terminal
    ready = next(line for line in lines if line["msg"].startswith("ready after") and line["process"] == "supervisor")
    assert (ready["level"], ready["address"]) == ("info", status["address"])
    assert {"ts", "pid", "logger"} <= ready.keys()


def test_a_busy_port_is_an_error_at_once_even_if_its_holder_would_share(serve):
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        server = serve(port=other.getsockname()[1])
        assert server.wait_end() == 1
        assert f"port {other.getsockname()[1]} of 127.0.0.1 is in use" in server.lines()[-1]["msg"]
    assert not list(server.data.glob("shard-*/wal"))  # no child was started


def test_a_second_server_on_the_same_data_is_an_error_at_once(serve):
    first = serve("one").wait_ready()
    second = serve("two", data_dir=first.data)
    assert second.wait_end() == 1
    assert f"another server (pid {first.process.pid}) uses the data directory" in second.lines()[-1]["msg"]
    assert first.get()["phase"] == "READY"
    assert first.stop() == 0


def test_a_child_that_cannot_use_its_data_ends_the_start(serve):
    server = serve(shard=EXITS_65)
    assert server.wait_end() == 1
    assert "what is on disk cannot be used" in server.text()
    assert not server.port_file.exists()


def test_a_port_file_that_cannot_be_written_is_an_error_that_names_it(serve, tmp_path):
    server = serve(port_file=tmp_path / "absent" / "port")
    assert server.wait_end() == 1
    assert "TOPICS_PORT_FILE (--port-file)" in server.text()


def test_a_child_that_does_not_stop_is_killed_in_time(serve):
    server = serve(gateway=STANDIN + " --stubborn", stop_ms=600).wait_ready()
    assert server.stop() == 1
    assert "gateway-0 has not ended yet and is killed" in server.text()
    assert list((server.data / "shard-00").glob("snapshot*"))  # the shards still had their time
    assert not any(alive(pid) for pid in server.pids)


def test_a_second_signal_kills_at_once(serve):
    server = serve(gateway=STANDIN + " --stubborn", stop_ms=3_600_000).wait_ready()
    server.process.send_signal(signal.SIGTERM)
    wait_until(lambda: "SIGTERM: stopping" in server.text())
    assert server.stop() == 1
    assert not any(alive(pid) for pid in server.pids)


def test_more_and_fewer_shards_keep_every_topic(serve):
    def owner_of(server, name):
        return json.loads((server.data / "SLOTS").read_text())["slots"][slot_of(name)]

    names = [f"topic-{n}" for n in range(6)]
    first = serve(shards=2).wait_ready()
    homes = {name: owner_of(first, name) for name in names}
    assert set(homes.values()) == {0, 1}
    for name in names:
        first.ask_shard(homes[name], "put", b"{}", topic=name)
    assert first.stop() == 0
    for shards, served in ((1, [0, 1]), (3, [0, 1, 2])):
        server = serve(shards=shards).wait_ready()
        assert server.get()["shards"] == served
        assert {name: owner_of(server, name) for name in names} == homes
        for name in names:
            server.ask_shard(homes[name], "state", topic=name)  # fails if it is not there
        assert server.stop() == 0


def test_systemd_is_told_and_secrets_reach_no_child_and_no_log(serve, tmp_path, monkeypatch):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        server = serve(api_keys="hush-hush:rw", shards=1, log_level="debug", stray="1").wait_ready()
        check_children_know_nothing(server)
        server.stop()
        told = b""
        while b"STOPPING=1" not in told:
            told += sock.recv(1000) + b"\n"
    assert b"STATUS=replaying logs" in told
    assert b"READY=1" in told
    assert "hush" not in server.text()
    assert any("TOPICS_STRAY" in line["msg"] for line in server.lines())


def check_children_know_nothing(server):
    for child in server.status()["children"]:
        assert b"hush" not in Path(f"/proc/{child['pid']}/environ").read_bytes()
        assert b"hush" not in Path(f"/proc/{child['pid']}/cmdline").read_bytes()
    environ = server.get()["environ"]
    names = {name for name in environ if name.startswith("TOPICS_")}
    assert names == {"TOPICS_LOG_FORMAT", "TOPICS_LOG_LEVEL", "TOPICS_LOG_NAME"}
    assert "NOTIFY_SOCKET" not in environ
