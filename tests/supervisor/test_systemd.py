"""What systemd sees and gives: the watchdog, a stuck shard, the listening socket, the unit files."""

import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.tools import need
from topics.cli.failures import USAGE
from topics.settings import OPTIONS
from topics.supervisor.listen import ListenError, inherited
from topics.testing.server import SERVE, Server, alive, send_signal, wait_until

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"


class Notes:
    """What a server sends to NOTIFY_SOCKET."""

    def __init__(self, path: Path) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sock.bind(str(path))
        self.sock.setblocking(False)

    def new(self) -> list[str]:
        """What has come since the last look."""
        found = []
        with suppress(BlockingIOError):
            while True:
                found += self.sock.recv(4096).decode().splitlines()
        return found


@contextmanager
def noted(folder: Path, environment: dict[str, str] | None = None, **settings: Any) -> Iterator[tuple[Server, Notes]]:
    notes = Notes(folder / "notify")
    told = {"NOTIFY_SOCKET": str(folder / "notify"), "WATCHDOG_USEC": "100000", **(environment or {})}
    with notes.sock, Server(folder / "s", environment=told, **settings) as server:
        yield server.start().wait_ready(), notes


def test_a_stuck_shard_is_killed_and_comes_back(tmp_path):
    with noted(tmp_path, stuck_ms=1500) as (server, notes):
        wait_until(lambda: "WATCHDOG=1" in notes.new(), "a ping")
        assert httpx.put(f"{server.url}/v0/topics/t", json={"durability": "fsync"}).status_code == 201
        seqs = httpx.post(f"{server.url}/v0/topics/t", json={"records": [{"data": 1}]}).json()["seqs"]
        before = {child["index"]: child for child in server.status()["children"] if child["kind"] == "shard"}
        stuck = server.kill("shard", 0, signal.SIGSTOP)
        assert stuck == before[0]["pid"]
        server.wait_back("shard", 0, stuck)
        assert not alive(stuck)
        assert any("shard-0 answers nothing any more and is killed" in line["msg"] for line in server.lines())
        wait_until(lambda: "WATCHDOG=1" in notes.new(), "pings again")
        assert server.child("shard", 1)["pid"] == before[1]["pid"]
        answer = wait_until(lambda: read_topic(server), "the topic")
        assert [record["$seq"] for record in answer["records"]] == seqs
        assert server.stop() == 0


@pytest.mark.slow
def test_the_watchdog_is_not_fed_while_a_child_is_silent(tmp_path):
    with noted(tmp_path, stuck_ms=600_000) as (server, notes):
        pid = server.kill("shard", 0, signal.SIGSTOP)
        try:
            wait_until(lambda: pings_have_stopped(notes), "the pings to stop")  # after two looks in vain, of 5 s each
        finally:
            send_signal(pid, signal.SIGCONT)
        wait_until(lambda: "WATCHDOG=1" in notes.new(), "pings again")
        assert server.child("shard", 0)["pid"] == pid


def pings_have_stopped(notes: Notes) -> bool:
    """Whether none comes in five times their interval."""
    notes.new()
    return not select.select([notes.sock], [], [], 0.25)[0]


def read_topic(server: Server) -> Any:
    answer = httpx.post(f"{server.url}/v0/topics/t/diff", json={})
    return answer.json() if answer.status_code == 200 else None


def test_the_status_says_who_is_not_well(tmp_path):
    with noted(tmp_path) as (server, notes):
        with server.held_down("shard", 1):
            wait_until(lambda: any("shard-1 " in line for line in notes.new()), "the status")
        server.wait_whole()
        wait_until(lambda: f"STATUS=serving http://127.0.0.1:{server.port}" in notes.new(), "a plain status")


def test_the_status_tells_one_that_is_silent_from_one_that_starts(tmp_path):
    with noted(tmp_path, stuck_ms=9_000) as (server, notes):  # a look takes 3 s at most; it is not killed before 9
        pid = server.kill("shard", 1, signal.SIGSTOP)
        try:
            plain = f"STATUS=serving http://127.0.0.1:{server.port}"
            seen = wait_until(lambda: [line for line in notes.new() if "shard-1" in line], "the status")
            assert seen == [f"{plain}; shard-1 not answering"]
        finally:
            send_signal(pid, signal.SIGCONT)
        wait_until(lambda: plain in notes.new(), "a plain status")
        assert server.child("shard", 1)["pid"] == pid


def test_all_processes_tell_the_journal_the_priority_of_their_lines(tmp_path):
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "log").touch()  # what the server gets as stderr, and takes for the journal
    log = os.stat(tmp_path / "s" / "log")
    environment = {"JOURNAL_STREAM": f"{log.st_dev}:{log.st_ino}"}
    with noted(tmp_path, environment, log_level="debug") as (server, _):
        httpx.get(f"{server.url}/v0/topics")
        assert server.stop() == 0
        marks = {"debug": "<7>", "info": "<6>", "warning": "<4>", "error": "<3>"}
        lines = [(line[:3], json.loads(line[3:])) for line in server.text().splitlines()]
    assert {line["process"] for _, line in lines} == {"supervisor", "shard-0", "shard-1", "gateway-0"}
    assert [mark for mark, _ in lines] == [marks[line["level"]] for _, line in lines]


# --- socket activation --------------------------------------------------------------------------------------------

# What systemd does: it puts its socket at descriptor 3 and names the process. Here it comes over a Unix socket.
ACTIVATE = """
import os, socket, sys
with socket.socket(socket.AF_UNIX) as giver:
    giver.connect(sys.argv[1])
    fd = socket.recv_fds(giver, 1, 1)[1][0]
os.dup2(fd, 3)
os.set_inheritable(3, True)
os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1", "LISTEN_FDNAMES": "topics.socket"}
os.execv(sys.argv[2], sys.argv[2:])
"""


class Systemd:
    """Holds the listening socket, over any number of lives of the server."""

    def __init__(self, folder: Path, host: str = "127.0.0.1", **settings: Any) -> None:
        self.listener = socket.create_server((host, 0), backlog=64)
        self.port = self.listener.getsockname()[1]
        self._giver = socket.socket(socket.AF_UNIX)
        self._giver.bind(str(folder / "give"))
        self._giver.listen()
        command = (sys.executable, "-c", ACTIVATE, str(folder / "give"), *SERVE)
        self.server = Server(folder / "s", command=command, **settings)

    def start(self) -> Server:
        self.server.start()
        with self._giver.accept()[0] as taker:
            socket.send_fds(taker, [b"x"], [self.listener.fileno()])
        return self.server

    def close(self) -> None:
        self.server.close()
        self._giver.close()
        self.listener.close()


@pytest.fixture
def systemd(tmp_path):
    made: list[Systemd] = []

    def make(**settings) -> Systemd:
        made.append(Systemd(tmp_path, **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.parametrize("settings", [{}, {"api_keys": "secret"}], ids=["no keys", "keys"])  # with keys it starts twice
def test_the_socket_of_systemd_is_served_and_connections_wait_for_the_next_server(systemd, settings):
    init = systemd(gateways=2, port=1, **settings)  # port 1 could not be had: it is not asked for
    server = init.start().wait_ready()
    assert server.port == init.port
    url, key = f"http://127.0.0.1:{init.port}", {"authorization": "Bearer secret"}
    for _ in range(20):
        assert httpx.get(f"{url}/v0/topics", headers=key).status_code == 200
    assert server.stop() == 0
    with socket.create_connection(("127.0.0.1", init.port), timeout=60) as early:
        early.sendall(b"GET /v0/health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        init.start().wait_ready()
        assert early.recv(100).startswith(b"HTTP/1.1 200")
    children = init.server.status()["children"]
    for child in children:
        names = Path(f"/proc/{child['pid']}/environ").read_bytes()
        assert b"LISTEN_" not in names
    shards = [child for child in children if child["kind"] == "shard"]
    inode = os.fstat(init.listener.fileno()).st_ino
    for shard in shards:
        held = {os.stat(fd).st_ino for fd in os.scandir(f"/proc/{shard['pid']}/fd") if fd.is_symlink()}
        assert inode not in held


def test_connections_that_come_in_a_drain_are_left_to_the_next_server(systemd):
    init = systemd(gateways=1)
    server, address, body = init.start().wait_ready(), ("127.0.0.1", init.port), b'{"records":[{"data":1}]}'
    with socket.create_connection(address, timeout=60) as upload:
        head = b"POST /v0/topics/t HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nexpect: 100-continue\r\n"
        upload.sendall(head + b"content-length: %d\r\n\r\n" % len(body))
        assert upload.recv(100).startswith(b"HTTP/1.1 100")  # so the server waits for it
        server.process.terminate()
        wait_until(lambda: server.ask("gateway-0.sock", "health", {}).head["draining"], "the drain")
        with socket.create_connection(address, timeout=60) as early:
            early.sendall(b"GET /v0/topics/t HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            upload.sendall(body)
            assert upload.recv(100).startswith(b"HTTP/1.1 201")
            assert server.wait_end() == 0
            init.start().wait_ready()
            answer = early.makefile("rb").read()
            # The next server answers from its first moment on, when its shard may not be there yet.
            assert answer.startswith(b"HTTP/1.1 200") or b'"not_ready"' in answer


def test_a_socket_that_others_reach_needs_keys(systemd):
    init = systemd(host="0.0.0.0")
    server = init.start()
    assert server.process.wait(60) == 1
    assert "which others can reach, and no API keys are set" in server.text()


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"LISTEN_PID": "1", "LISTEN_FDS": "1"}, None),
        ({"LISTEN_FDS": "1"}, None),
        ({"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "0"}, None),
        ({"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "2"}, "2 sockets; topics takes one"),
    ],
)
def test_whose_socket_it_is(environ, message):
    if message is None:
        assert inherited(environ, os.getpid()) is None
    else:
        with pytest.raises(ListenError, match=message):
            inherited(environ, os.getpid())


# --- the unit files -----------------------------------------------------------------------------------------------


def found(pattern: str, text: str) -> str:
    match = re.search(pattern, text, re.M)
    assert match, pattern
    return match[1]


def units(folder: Path) -> list[str]:
    """Copies of them, with a program that is there."""
    copies = []
    for name in ("topics.service", "topics.socket"):
        text = (DEPLOY / name).read_text()
        (folder / name).write_text(re.sub(r"^ExecStart=\S+", f"ExecStart={shutil.which('true')}", text, flags=re.M))
        copies.append(str(folder / name))
    return copies


def test_systemd_accepts_the_units(tmp_path):
    command = [need("systemd-analyze", always_optional=True), "verify", "--man=no", *units(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    ours = [line for line in done.stderr.splitlines() if "topics." in line]
    assert (done.returncode, ours) == (0, [])


def test_systemd_rates_the_service_ok_or_better(tmp_path):
    service, _ = units(tmp_path)
    command = [need("systemd-analyze", always_optional=True), "security", "--offline=true", "--threshold=25", service]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, "LC_ALL": "C.UTF-8"})
    verdict = done.stdout.strip().splitlines()[-1]
    print(verdict)
    assert done.returncode == 0, verdict  # an exposure of 2.5 or less; up to 4.9 is "OK"


def test_the_service_gives_the_server_what_it_reads():
    text = (DEPLOY / "topics.service").read_text()
    assert "LoadCredential=topics-api-keys:" in text
    watchdog_s = int(found(r"^WatchdogSec=(\d+)$", text))
    stop_s = int(found(r"^TimeoutStopSec=(\d+)$", text))
    defaults = {option.name: option.default for option in OPTIONS}
    assert watchdog_s * 1000 > 2 * defaults["stuck_ms"]  # a stuck child is dealt with before the watchdog acts
    assert stop_s * 1000 > defaults["stop_ms"]
    for name in re.findall(r"TOPICS_\w+", text):
        assert name.removeprefix("TOPICS_").lower() in defaults


def test_what_a_restart_cannot_mend_is_not_tried_again():
    """Of the statuses of `topics serve` only wrong usage is that for certain."""
    text = (DEPLOY / "topics.service").read_text()
    assert found(r"^RestartPreventExitStatus=(.+)$", text) == str(USAGE)
    assert found(r"^Restart=(.+)$", text) == "on-failure"
    assert int(found(r"^StartLimitBurst=(\d+)$", text)) > 1


def test_the_service_may_lower_the_priority_of_its_threads_and_shorten_their_turns():
    """Allowed again after the group that both belong to was taken away; without them large work would not give way."""
    filters = re.findall(r"^SystemCallFilter=(.*)$", (DEPLOY / "topics.service").read_text(), re.M)
    assert filters[-2:] == ["~@privileged @resources", "setpriority sched_setattr"]


def test_the_keys_are_in_one_place():
    place = found(r"^LoadCredential=topics-api-keys:(\S+)$", (DEPLOY / "topics.service").read_text())
    docs = DEPLOY.parent / "docs"
    assert f"topics-api-keys:{place}`" in (docs / "keys.md").read_text()
    assert f"topics keys new > {place})" in (docs / "deploy.md").read_text()


def test_a_service_without_keys_is_a_drop_in(tmp_path):
    service, _ = units(tmp_path)
    (tmp_path / "topics.service.d").mkdir()
    (tmp_path / "topics.service.d" / "no-keys.conf").write_text("[Service]\nLoadCredential=\n")
    command = [need("systemd-analyze", always_optional=True), "verify", "--man=no", service]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, [line for line in done.stderr.splitlines() if "topics." in line]) == (0, [])


def test_the_proxies_let_streams_through():
    caddy = (DEPLOY / "Caddyfile").read_text()
    assert "flush_interval -1" in caddy
    nginx = (DEPLOY / "nginx.conf").read_text()
    assert "proxy_read_timeout" in nginx


def test_caddy_accepts_its_file():
    command = [
        need("caddy", always_optional=True),
        "validate",
        "--adapter",
        "caddyfile",
        "--config",
        str(DEPLOY / "Caddyfile"),
    ]
    assert subprocess.run(command, capture_output=True, timeout=60).returncode == 0


def test_the_container_file_names_what_is_there():
    text = (DEPLOY / "Containerfile").read_text()
    root = DEPLOY.parent
    copied = {name for source in re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.M) for name in source.split()}
    for name in copied:
        assert (root / name).exists(), name
    build = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert {f"{module}.py" for module in build["py-modules"]} <= copied
    assert {name.rstrip("*") for name in build["packages"]["find"]["include"]} <= copied
    secret = found(r"--secret (\S+)", text)
    assert secret == found(r"--secret (\S+)", (root / "docs" / "deploy.md").read_text())
    assert found(r"(podman build .+)$", text) == found(r"(podman build .+)$", (root / "docs" / "deploy.md").read_text())
    assert ("HEALTHCHECK" in text) == ("podman build --format docker " in text)  # podman's own format has none
    assert "mode=0400" in secret  # one that everybody can read is refused
    uid = found(r"--uid (\d+)", text)
    assert f"uid={uid}" in secret
    assert re.findall(r"--gid (\d+)", text) == [uid, uid]  # of the group, and of the user
    assert f"chown {uid}:{uid} " in (root / "docs" / "deploy.md").read_text()
    assert json.loads(found(r"^ENTRYPOINT (\[.+\])$", text)) == ["topics"]
