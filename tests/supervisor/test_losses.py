"""SIGKILL of shards, gateways and the supervisor itself."""

import os
import signal
import socket
import sys

import pytest

from tests.supervisor.server_process import STANDIN, ServerProcess, alive, wait_until
from topics.board import Board
from topics.errors import TopicsError
from topics.supervisor.policy import FAILURES_MAX
from topics.testing.server import send_signal


@pytest.fixture
def server(tmp_path):
    with ServerProcess(tmp_path) as server:
        yield server.wait_ready()


def test_a_killed_shard_comes_back_and_the_others_are_not_disturbed(server):
    before = {(child["kind"], child["index"]): child for child in server.status()["children"]}
    killed = server.kill("shard", 1)
    assert killed == before["shard", 1]["pid"]
    back = server.wait_back("shard", 1, killed)
    assert back["restarts"] == 1
    server.ask_shard(1, "put", b"{}", topic="x")
    for other in (("shard", 0), ("gateway", 0)):
        assert server.child(*other)["pid"] == before[other]["pid"]
        assert server.child(*other)["restarts"] == 0
    known = server.get()
    assert (known["phase"], known["not_ready"]) == ("READY", [])
    assert "shard-1 was killed by SIGKILL; starting it again in 0 ms" in server.text()
    assert server.stop() == 0


def test_a_shard_that_is_killed_at_every_start_comes_back_once_it_is_left_alone(server):
    pid = 0

    def started() -> int:
        now: int = server.child("shard", 1)["pid"] or 0
        return now if now != pid else 0

    for _ in range(FAILURES_MAX + 2):
        pid = wait_until(started, "the next start")
        send_signal(pid, signal.SIGKILL)
    server.wait_back("shard", 1, pid)
    server.ask_shard(1, "put", b"{}", topic="x")


def test_connections_wait_while_a_gateway_restarts(server):
    server.get()
    board = Board.open(os.path.join(server.holder()["run_dir"], "board"))
    assert board.gateway(0).get("requests") == 1
    old = server.kill("gateway", 0, signal.SIGSTOP)  # now nothing is accepted any more
    clients = [socket.create_connection(("127.0.0.1", server.port), timeout=60) for _ in range(50)]
    for client in clients:
        client.sendall(b"GET / HTTP/1.1\r\n\r\n")
    send_signal(old, signal.SIGKILL)
    for client in clients:
        assert client.recv(100).startswith(b"HTTP/1.1 200")
        client.close()
    new = server.wait_back("gateway", 0, old)
    assert new["pid"] != old
    # The dead gateway's count was cleared; its successor counts from zero.
    wait_until(lambda: board.gateway(0).get("requests") == 50, "50 requests on the board")


def test_a_killed_supervisor_leaves_no_orphan_and_its_successor_starts_at_once(server, tmp_path):
    run_dir = server.holder()["run_dir"]
    server.ask_shard(0, "put", b"{}", topic="kept")
    server.kill_supervisor()
    with ServerProcess(tmp_path) as successor:  # it waits for the children of the killed one
        wait_until(lambda: not any(alive(pid) for pid in server.pids), "the orphans to end")
        wait_until(lambda: successor.data.joinpath("LOCK").read_bytes() and successor.holder()["run_dir"] != run_dir)
        successor.wait_ready()
        assert not os.path.exists(run_dir)
        successor.ask_shard(0, "state", topic="kept")
        assert successor.stop() == 0


def test_a_shard_can_be_restarted_by_the_admin(server):
    old = server.child("shard", 0)["pid"]
    assert server.call("restart", kind="shard", index=0) == {"pid": old}
    server.wait_back("shard", 0, old)
    with pytest.raises(TopicsError, match="there is no shard 9"):
        server.call("restart", kind="shard", index=9)


def test_a_gateway_that_is_given_up_leaves_the_port_to_the_others(tmp_path):
    """The first start of each gateway works; later ones of gateway 1 end with a status that is not tried again."""
    once = tmp_path / "once"
    once.write_text(
        "import os, sys, runpy\n"
        "mark = os.environ['TOPICS_LOG_NAME'] + '.ran'\n"
        "if os.path.exists(mark): sys.exit(65)\n"
        "open(mark, 'w').close()\n"
        f"runpy.run_path({STANDIN.split()[-1]!r}, run_name='__main__')\n"
    )
    with ServerProcess(tmp_path, gateway=f"{sys.executable} {once}", gateways=2) as server:
        server.wait_ready()
        server.kill("gateway", 1)
        wait_until(lambda: server.child("gateway", 1)["state"] == "failed", "the supervisor to give up")
        assert {server.get()["index"] for _ in range(20)} == {0}
        server.kill("gateway", 0)
        assert server.wait_end() == 1  # nobody is left to answer
        assert "the server stops because gateway-0 cannot run" in server.text()
