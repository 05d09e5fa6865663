"""Shards that tests make are under the ordering monitor without asking for it."""

import errno
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from topics.core.config import parse_config
from topics.rpc.errors import PeerLost
from topics.shards.failing_files import FailingFiles
from topics.shards.files import Files, RealFiles
from topics.shards.recovery import recover
from topics.shards.shard import Shard
from topics.shards.store import Store
from topics.shards.wal import WalWriter
from topics.testing.disk_monitor import OrderingViolation
from topics.testing.fake_clock import FakeClock
from topics.testing.faulty_files import FaultyFiles
from topics.testing.shard_process import ShardProcess
from topics.testing.watched_process import EXIT_DISORDER
from topics.testing.watched_shards import VIOLATIONS


class SpecialFiles(FaultyFiles):
    """As tests make them."""


@pytest.fixture(params=["real", "faulty", "special", "wrapped"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    real = RealFiles(str(tmp_path))
    made: dict[str, Files] = {
        "real": real,
        "faulty": FaultyFiles(),
        "special": SpecialFiles(),
        "wrapped": FailingFiles(real, []),
    }
    return made[request.param]


@pytest.fixture
def no_sync(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def forget(writer: WalWriter) -> None:
        writer.synced_lsn = writer.written_lsn

    monkeypatch.setattr(WalWriter, "sync", forget)
    yield
    VIOLATIONS.clear()


def put(store: Store) -> list[object]:
    answers: list[object] = []
    store.engine.put_topic("t", parse_config({}, "t"), answers.append, answers.append)
    return answers


def test_an_ack_before_its_sync(files, no_sync):
    store = recover(files, FakeClock())
    answers = put(store)
    with pytest.raises(OrderingViolation, match="acknowledged before wal/"):
        store.commit_all()
    assert answers == []
    assert len(VIOLATIONS) == 1


def test_an_ack_before_its_sync_in_a_running_shard(files, no_sync):
    """The committer's report ends the whole run."""

    shard = Shard(files, own_process=False)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(shard.run, trio.Event())
            await shard.ready.wait()
            assert shard.store is not None
            put(shard.store)

    with pytest.raises(trio.TrioInternalError):
        trio.run(main)
    shard.abandon()
    assert len(VIOLATIONS) == 1


async def test_an_ack_before_its_sync_ends_a_shard_process(tmp_path: Path):
    forget = "WalWriter.sync = lambda self: setattr(self, 'synced_lsn', self.written_lsn)"
    run = "runpy.run_module('topics.testing.watched_process', run_name='__main__', alter_sys=True)"
    broken = f"import runpy, sys; del sys.argv[1:4]; from topics.shards.wal import WalWriter; {forget}; {run}"
    shard = ShardProcess(tmp_path / "shard")
    try:
        shard.start(sys.executable, "-c", broken, stderr=subprocess.PIPE)
        assert shard.process is not None
        assert shard.process.stderr is not None
        async with shard.connected() as client:
            with pytest.raises(PeerLost):
                await client.put("t")
        assert shard.process.wait(timeout=60) == EXIT_DISORDER
        assert b"acknowledged before wal/" in shard.process.stderr.read()
    finally:
        shard.clean_up()


def test_after_a_failure_nothing_is_said():
    disk = FaultyFiles()
    store = recover(disk, FakeClock())
    put(store)
    store.write_group(store.engine.log.take())
    disk.fail_at(disk.calls, errno.EIO)
    with pytest.raises(OSError, match="sync wal/"):
        store.sync_log()
    store.engine.durable(store.engine.log.last_lsn)  # a lie, but who knows what is to be expected now
    assert VIOLATIONS == []
