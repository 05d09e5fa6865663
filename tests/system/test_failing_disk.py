"""A disk that fails under a real server, seen from outside: system calls that return errors, and one that is full."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.system.client import Client
from topics.errors import NOT_READY, STORAGE_FULL
from topics.testing.server import DEADLINE_S, Server, alive, wait_until

LEFT = 5 << 20  # less than a shard keeps back, more than it admits before it looks again
REQUIRED = os.environ.get("TOPICS_REQUIRE_STRACE") == "1"


def give_up(reason: str) -> None:
    """Skip, unless this run has to be able to do it."""
    if REQUIRED:
        pytest.fail(f"{reason} (TOPICS_REQUIRE_STRACE=1)")
    pytest.skip(reason)


@contextmanager
def failing(pid: int, folder: Path, call: str, error: str) -> Iterator[None]:
    """While this lasts, every such system call of the process fails."""
    if shutil.which("strace") is None:
        give_up("strace is not installed")
    log = folder / "strace"
    command = ["strace", "-f", "-q", "-o", "/dev/null", "-e", f"trace={call}", "-e", f"inject={call}:error={error}"]
    with open(log, "wb") as output:
        tracer = subprocess.Popen([*command, "-p", str(pid)], stdout=output, stderr=output)
    try:
        wait_until(lambda: tracer.poll() is not None or _is_traced_by(pid, tracer.pid), "strace to attach")
        if tracer.poll() is not None:
            give_up(f"strace cannot attach here: {log.read_text().strip()}")
        yield
    finally:
        # Not SIGTERM: strace would wait for a process that has ended and that nobody has reaped yet.
        tracer.kill()
        tracer.wait(timeout=DEADLINE_S)


def _is_traced_by(pid: int, tracer: int) -> bool:
    """Every thread: the log has one of its own."""
    tasks = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/status")]
    return bool(tasks) and all(f"TracerPid:\t{tracer}\n" in text for text in tasks)


@pytest.mark.parametrize("call", ["fdatasync", "pwritev,pwritev2"])
def test_a_log_that_fails_stops_writes_says_so_and_loses_nothing(serve, tmp_path, call):
    server: Server = serve(shards=1)
    acked: list[str] = []
    with Client(server) as client:
        client.put("safe", durability="fsync")
        for number in range(50):
            client.append("safe", {"records": [{"data": f"acked-{number}"}]})
            acked.append(f"acked-{number}")
        pid = server.pid_of("shard", 0)
        server.process.send_signal(signal.SIGSTOP)  # nobody starts the shard again before we have looked
        doubtful = {"records": [{"data": "in doubt"}], "idempotency_key": "once"}
        with failing(pid, tmp_path, call, "EIO"):
            answer = client.once("POST", "/v0/topics/safe", doubtful)
            assert answer.status_code == 503, answer.text
            assert answer.json()["error"]["code"] == NOT_READY
            wait_until(lambda: not alive(pid), "the shard to end")
        assert client.once("POST", "/v0/topics/safe", doubtful).status_code == 503
        metrics = httpx.get(server.url + "/v0/metrics").text
        assert 'topics_shard_up{shard="0"} 0' in metrics
        assert "topics_ready 0" in metrics
        server.process.send_signal(signal.SIGCONT)
        server.wait_back("shard", 0, pid)
        assert "the log failed, no more writes are taken: OSError: [Errno 5]" in server.text()
        before = [record["data"] for record in client.read_all("safe")[0]]
        assert before in (acked, [*acked, "in doubt"])
        client.append("safe", doubtful)
        records, gaps = client.read_all("safe")
        assert [record["data"] for record in records] == [*acked, "in doubt"]
        assert gaps == []
    assert server.stop() == 0


# --- a full disk --------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    path = tmp_path / "small"
    path.mkdir()
    if os.geteuid() != 0:
        give_up("mounting a small file system needs root")
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(path)], capture_output=True, text=True
    )
    if done.returncode:
        give_up(f"cannot mount a tmpfs here: {done.stderr.strip()}")
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)


class Filler:
    """Appends batches of 100 kB and knows what was acked."""

    def __init__(self, client: Client, topic: str) -> None:
        self.client = client
        self.topic = topic
        self.acked: list[int] = []

    def write(self) -> httpx.Response:
        records = [{"data": "x" * 10_000}] * 10
        answer = self.client.once("POST", f"/v0/topics/{self.topic}", {"records": records})
        if answer.status_code == 200:
            self.acked += answer.json()["seqs"]
        return answer

    def until_full(self) -> httpx.Response:
        """Until writes are refused for good: what the log holds goes to data files meanwhile, which makes room."""
        refused = 0
        until = time.monotonic() + 60
        while refused < 40:
            assert time.monotonic() < until, "it never fills"
            answer = self.write()
            refused = 0 if answer.status_code == 200 else refused + 1
            if refused:
                time.sleep(0.05)
        return answer

    def check_kept(self, client: Client) -> None:
        records, gaps = client.read_all(self.topic)
        assert [record["$seq"] for record in records] == self.acked
        assert gaps == []


def test_a_full_disk_is_told_and_service_resumes_when_there_is_room(small_disk, tmp_path):
    with Server(tmp_path / "s", shards=1, data_dir=small_disk) as server, Client(server) as client:
        server.start().wait_ready()
        client.put("kept", durability="fsync")
        client.append("kept", {"records": [{"data": "kept"}]})
        client.put("bulk", durability="fsync")
        filler = Filler(client, "bulk")
        refusal = filler.until_full()
        assert refusal.status_code == 507
        assert refusal.json()["error"]["code"] == STORAGE_FULL
        filler.check_kept(client)
        # deletes give room back, without anybody's help
        client.delete("bulk", before_seq=filler.acked[-1] + 1)
        filler.acked.clear()
        for _ in range(20):
            wait_until(lambda: filler.write().status_code == 200, "room after a delete")
        filler.check_kept(client)
        # and so do files of others that go
        other = small_disk / "other"
        left = os.statvfs(small_disk)
        other.write_bytes(bytes(left.f_bavail * left.f_frsize - LEFT))
        wait_until(lambda: filler.write().status_code == 507, "the disk to be full")
        assert [record["data"] for record in client.read_all("kept")[0]] == ["kept"]
        other.unlink()
        wait_until(lambda: filler.write().status_code == 200, "room after a file went")
        filler.check_kept(client)
        assert "no more writes are taken" not in server.text()
        assert server.child("shard", 0)["restarts"] == 0
        assert server.stop() == 0
        server.start().wait_ready()
        filler.check_kept(client)
