"""Children are forks of a template, and nobody can tell them from processes that were started one by one."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import msgspec
import pytest

from topics.supervisor.forks import Fork
from topics.supervisor.template import GO, Request, place
from topics.supervisor.template_start import COMMAND, ROOM
from topics.testing.server import Server, alive, send_signal, wait_until

SHARD = "topics.shards.__main__"


@pytest.fixture
def serve(tmp_path):
    servers: list[Server] = []

    def start(**settings):
        servers.append(Server(tmp_path / str(len(servers)), **settings))
        return servers[-1].start().wait_ready()

    yield start
    for server in servers:
        server.close()


def fields(pid):
    """Parent and process group."""
    return [int(field) for field in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1:3]]


def command_of(pid):
    return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0 ").decode().split("\0")


def template_of(server):
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
    return next(int(pid) for pid in children if "topics.supervisor.template" in command_of(pid))


def targets(pid):
    return {os.readlink(fd.path) for fd in os.scandir(f"/proc/{pid}/fd")}


def test_a_fork_looks_like_any_child(serve):
    server = serve(shards=2, gateways=2)
    template = template_of(server)
    for child in server.status()["children"]:
        pid, kind = child["pid"], child["kind"]
        command = command_of(pid)
        assert command[:4] == [sys.executable, "-P", "-m", "topics.shards" if kind == "shard" else "topics.gateway"]
        if kind == "shard":
            assert command[command.index("--index") + 1] == str(child["index"])
        assert fields(pid) == [server.process.pid, pid]
        assert not targets(pid) & {link for link in targets(template) if link.startswith("socket:")}
        assert os.readlink(f"/proc/{pid}/fd/0") == os.devnull
    assert not any(link.endswith("LOCK") for link in targets(template))


def test_lists_of_processes_do_not_show_the_room_for_other_command_lines(serve):
    template = template_of(serve())
    assert b" " not in Path(f"/proc/{template}/cmdline").read_bytes()


def test_gateways_do_not_share_what_belongs_to_one_process(serve):
    server = serve(gateways=2)
    ids = [httpx.get(f"{server.url}/v0/health").headers["x-request-id"] for _ in range(60)]
    assert len(set(ids)) == len(ids)
    assert len({each.partition("-")[0] for each in ids}) == 2


def test_without_its_template_a_server_goes_on(serve):
    server = serve()
    send_signal(template_of(server), signal.SIGKILL)
    for kind in ("shard", "gateway", "shard"):
        pid = server.kill(kind, 0)
        child = server.wait_back(kind, 0, pid)
        assert fields(child["pid"]) == [server.process.pid, child["pid"]]
    httpx.put(f"{server.url}/v0/topics/a").raise_for_status()
    assert server.stop() == 0


def test_a_fork_that_is_killed_comes_back_as_a_fork(serve):
    server = serve()
    template = template_of(server)
    for kind in ("shard", "gateway"):
        server.wait_back(kind, 0, server.kill(kind, 0))
    assert template_of(server) == template
    assert {child["restarts"] for child in server.status()["children"] if child["index"] == 0} == {1}
    assert server.stop() == 0
    assert not alive(template)


def test_the_template_ends_with_its_supervisor(serve):
    server = serve()
    template = template_of(server)
    server.kill_supervisor()
    wait_until(lambda: not alive(template), "the template to end")
    server.wait_gone()


class Asked:
    """A template without a supervisor."""

    def __init__(self, tmp_path):
        self.control, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.out = tmp_path / "out"
        with its, open(self.out, "wb") as out:
            self.process = subprocess.Popen([*COMMAND, str(its.fileno()), ROOM], stdout=out, pass_fds=(its.fileno(),))

    def fork(self, *arguments):
        """Its pid, and the end of the pipe at which it waits."""
        waiting, gate = os.pipe()
        request = Request(SHARD, list(arguments), ["shard", *arguments], {}, [])
        socket.send_fds(self.control, [msgspec.json.encode(request)], [waiting])
        os.close(waiting)
        return int(self.control.recv(32)), gate

    def close(self):
        self.control.close()
        assert self.process.wait(60) == 0


@pytest.fixture
def asked(tmp_path):
    made = Asked(tmp_path)
    yield made
    made.close()


def test_a_fork_that_nobody_knows_of_does_nothing(asked):
    """The supervisor may have started another one, and two must not write the same files."""
    pid, gate = asked.fork("--help")
    assert alive(pid)
    os.close(gate)
    wait_until(lambda: not alive(pid), "the fork to end")
    assert asked.out.read_bytes() == b""


def test_a_fork_begins_when_it_is_told_to(asked):
    pid, gate = asked.fork("--help")
    assert asked.out.read_bytes() == b""
    wait_until(lambda: command_of(pid) == ["shard", "--help"], "its command line")
    os.write(gate, GO)
    os.close(gate)
    wait_until(lambda: not alive(pid), "the fork to end")
    assert b"usage: python -m topics.shards" in asked.out.read_bytes()


def test_descriptors_may_swap_their_numbers():
    pipes = [os.pipe() for _ in range(2)]
    (first, _), (second, _) = pipes
    for n, (_, writing) in enumerate(pipes):
        os.write(writing, b"%d" % n)
        os.close(writing)
    free = max(first, second) + 20
    place([first, second], [second, first])
    assert (os.read(first, 1), os.read(second, 1)) == (b"1", b"0")
    place([first, second], [free, first])
    assert (os.read(free, 1), os.read(first, 1)) == (b"", b"")
    assert not Path(f"/proc/self/fd/{second}").exists()
    os.close(first)
    os.close(free)


async def test_nothing_is_sent_to_the_number_of_one_that_has_ended(monkeypatch):
    pid = os.posix_spawn(sys.executable, [sys.executable, "-c", "import sys; sys.stdin.read()"], os.environ)
    fork, sent = Fork(pid), []
    fork.send_signal(signal.SIGKILL)
    assert await fork.wait() == -signal.SIGKILL
    monkeypatch.setattr(os, "kill", lambda *what: sent.append(what))
    fork.send_signal(signal.SIGKILL)
    assert sent == []
