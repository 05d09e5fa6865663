"""The run directory, the port file, and the message to systemd."""

import os
import socket

import pytest

from topics.supervisor.notify import Notifier
from topics.supervisor.rundir import RunDirError, make_run_dir, remove_run_dir, write_port_file


def test_a_run_directory_is_private_and_short():
    path = make_run_dir(None, None)
    assert path.parent.as_posix() == "/tmp"
    assert path.stat().st_mode & 0o777 == 0o700
    assert len(str(path / "gateway-63.sock")) <= 107
    (path / "x").touch()
    remove_run_dir(path)
    assert not path.exists()


def test_the_runtime_directory_of_the_user_is_preferred_if_it_serves():
    short = make_run_dir("/tmp", None)
    inside = make_run_dir(None, str(short))
    assert inside.parent == short
    remove_run_dir(short)


@pytest.mark.parametrize("xdg", ["/absent", "/tmp/" + "x" * 90])
def test_one_that_does_not_serve_is_passed_over(xdg):
    path = make_run_dir(None, xdg)
    assert path.parent.as_posix() == "/tmp"
    remove_run_dir(path)


def test_a_long_or_unusable_setting_is_an_error_that_names_it(tmp_path):
    with pytest.raises(RunDirError, match=r"TOPICS_RUN_DIR \(--run-dir\) .* too long"):
        make_run_dir("/tmp/" + "x" * 90, None)
    with pytest.raises(RunDirError, match=r"TOPICS_RUN_DIR \(--run-dir\) /dev/null cannot be used"):
        make_run_dir("/dev/null", None)


def test_only_a_directory_that_looks_like_ours_is_removed(tmp_path):
    (tmp_path / "precious").mkdir()
    (tmp_path / "topics-link").symlink_to(tmp_path / "precious")
    remove_run_dir(tmp_path / "precious")
    remove_run_dir(tmp_path / "topics-link")
    remove_run_dir(tmp_path / "topics-absent")
    assert sorted(os.listdir(tmp_path)) == ["precious", "topics-link"]


def test_the_port_file_appears_whole(tmp_path):
    write_port_file(tmp_path / "port", "127.0.0.1:4000")
    assert (tmp_path / "port").read_text() == "127.0.0.1:4000"
    assert os.listdir(tmp_path) == ["port"]


def test_systemd_is_told(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "n"))
        Notifier(str(tmp_path / "n")).send(READY=1, STATUS="serving")
        assert sock.recv(100) == b"READY=1\nSTATUS=serving"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(f"\0topics-{os.getpid()}")
        Notifier(f"@topics-{os.getpid()}").send(STOPPING=1)
        assert sock.recv(100) == b"STOPPING=1"


def test_nobody_listens_and_nothing_happens(tmp_path):
    Notifier(None).send(READY=1)
    Notifier(str(tmp_path / "absent")).send(READY=1)
