"""A data directory with files that the server may not use: one line that says which and whose, and an end."""

import os
import sys
from pathlib import Path

import pytest

from topics.testing.server import SERVE, Server

# Root opens every file. Started through this it does not: without these two capabilities it is a user like others.
WITH_FEW_RIGHTS = """
import ctypes, os, sys
PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 24, 1, 2
for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
    ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""
NOBODY = 65534


@pytest.fixture
def server(tmp_path):
    """Stopped, with a data directory that it has served."""
    with Server(tmp_path / "s", command=(sys.executable, "-c", WITH_FEW_RIGHTS, *SERVE)) as made:
        made.start().wait_ready()
        assert made.stop() == 0
        made.log.unlink()
        yield made


@pytest.mark.parametrize("name", ["LOCK", "FORMAT", "SLOTS", "shard-01"])
def test_what_the_supervisor_cannot_open_is_named(server, name):
    (server.data / name).chmod(0)
    try:
        assert server.start().wait_end() == 1
    finally:
        (server.data / name).chmod(0o700)
    (line,) = errors(server)
    assert line.startswith(f"cannot use the data directory {server.data}: {server.data / name}")
    assert "Permission denied; " in line
    assert "(mode 0000), and this process runs as " in line


def test_a_directory_that_must_not_be_written_to_is_named(server):
    (server.data / "FORMAT").unlink()
    server.data.chmod(0o500)
    try:
        assert server.start().wait_end() == 1
    finally:
        server.data.chmod(0o700)
    (line,) = errors(server)
    assert str(server.data / "FORMAT") in line
    assert f"; {server.data} belongs to " in line


def test_what_a_shard_cannot_open_ends_the_start(server):
    log = next((server.data / "shard-01" / "wal").glob("*.wal"))
    log.chmod(0)
    assert server.start().wait_end() == 1
    said = errors(server)
    assert said[0].startswith(f"cannot use {server.data / 'shard-01'}: {log}: Permission denied; it belongs to ")
    assert said[1:] == [
        "shard-1 is not started again: what is on disk cannot be used as it is (see its log lines)",
        "the server stops because shard-1 cannot run",
    ]
    log.chmod(0o600)
    server.start().wait_ready()
    assert server.stop() == 0


def test_what_root_left_behind_is_told_with_the_way_out(server):
    if os.geteuid() != 0:
        pytest.skip("giving files away needs root")
    for path in (server.data / "shard-01", *(server.data / "shard-01").rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    assert server.start().wait_end() == 1
    (line,) = errors(server)
    assert f"; {server.data / 'shard-01'} belongs to " in line
    assert line.endswith(f"(chown -R root: {server.data})")


def errors(server: Server) -> list[str]:
    assert "Traceback" not in server.text()
    assert all(line.startswith("{") for line in Path(server.log).read_text().splitlines())
    return [line["msg"] for line in server.lines() if line["level"] == "error"]
