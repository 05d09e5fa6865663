"""LOCK and FORMAT."""

import json
import os
import subprocess
import sys
import time

import pytest

from topics.supervisor import datadir
from topics.supervisor.datadir import DataDirError, open_data_dir, write_file


def test_a_new_directory_is_made_private_and_named(tmp_path):
    data = open_data_dir(tmp_path / "a" / "b")
    data.publish("/run/x")
    assert (tmp_path / "a" / "b" / "FORMAT").read_text() == "topics 1\n"
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700
    assert json.loads((tmp_path / "a" / "b" / "LOCK").read_text()) == {"pid": os.getpid(), "run_dir": "/run/x"}
    data.close()
    assert (tmp_path / "a" / "b" / "LOCK").read_bytes() == b""


def test_a_locked_directory_names_its_holder_at_once(tmp_path, monkeypatch):
    data = open_data_dir(tmp_path)
    os.pwrite(data.lock_fd, json.dumps({"pid": os.getppid(), "run_dir": "/x"}).encode(), 0)
    monkeypatch.setattr(datadir, "ORPHAN_WAIT_S", 600.0)
    with pytest.raises(DataDirError, match=rf"another server \(pid {os.getppid()}\) uses the data directory"):
        open_data_dir(tmp_path)
    data.close()
    open_data_dir(tmp_path).close()


def test_children_of_a_killed_server_are_waited_for(tmp_path, monkeypatch):
    data = open_data_dir(tmp_path)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    os.pwrite(data.lock_fd, json.dumps({"pid": ended.pid, "run_dir": "/x"}).encode(), 0)
    naps = []

    def nap(seconds):
        naps.append(seconds)
        if len(naps) == 3:
            os.close(data.lock_fd)  # the last of them ends

    monkeypatch.setattr(time, "sleep", nap)
    again = open_data_dir(tmp_path)
    assert len(naps) == 3
    assert again.previous is not None
    assert again.previous.run_dir == "/x"
    again.close()


def test_the_wait_for_them_ends(tmp_path, monkeypatch):
    data = open_data_dir(tmp_path)
    monkeypatch.setattr(datadir, "ORPHAN_WAIT_S", 0.0)
    with pytest.raises(DataDirError, match="another server uses"):
        open_data_dir(tmp_path)
    data.close()


@pytest.mark.parametrize(
    ("text", "message"),
    [("topics 2\n", "newer topics"), ("", "right data directory"), ("other 1", "right data directory")],
)
def test_a_format_that_cannot_be_read_is_refused(tmp_path, text, message):
    (tmp_path / "FORMAT").write_text(text)
    with pytest.raises(DataDirError, match=message):
        open_data_dir(tmp_path)


def test_a_directory_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataDirError, match=r"cannot use the data directory .*file"):
        open_data_dir(tmp_path / "file")


def test_write_file_replaces_whole(tmp_path):
    write_file(tmp_path / "x", b"old")
    write_file(tmp_path / "x", b"new")
    assert (tmp_path / "x").read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["x"]
