"""Messages about files that this process may not use."""

import errno
import os
from pathlib import Path

import pytest

from topics.owners import explain, is_denied, user_name

ME = os.geteuid()
OTHER = ME + 1


def denied(path: Path) -> PermissionError:
    return PermissionError(errno.EACCES, "Permission denied", str(path))


def chown(user: str) -> str:
    return f"chown -R {user}" if user.isdecimal() else f"chown -R {user}:"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    made = tmp_path / "data"
    (made / "shard-01").mkdir(mode=0o700, parents=True)
    made.chmod(0o700)
    (made / "shard-01" / "slots.used").touch(mode=0o600)
    return made


def test_a_directory_of_another_user_is_to_be_used_by_that_one(data, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: OTHER)
    file, me, owner = data / "shard-01" / "slots.used", user_name(OTHER), user_name(ME)
    assert explain(denied(file), data) == (
        f"{file}: Permission denied; it belongs to {owner} (mode 0600), and this process runs as {me}: "
        f"run it as {owner}, or give all of the directory to {me} ({chown(me)} {data})"
    )


def test_a_file_that_is_not_there_is_refused_by_its_directory(data, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: OTHER)
    said = explain(denied(data / "LOCK"), data)
    assert f"; {data} belongs to {user_name(ME)} (mode 0700), and this" in said


def test_a_directory_of_ours_with_files_of_another_is_to_become_ours(data):
    if ME != 0:
        pytest.skip("giving files away needs root")
    os.chown(data / "shard-01", OTHER, -1)
    said = explain(denied(data / "shard-01" / "slots.used"), data)
    me, other = user_name(ME), user_name(OTHER)
    assert f"; {data / 'shard-01'} belongs to {other} (mode 0700), and this process runs as {me}: give" in said
    assert said.endswith(f"({chown(me)} {data})")


def test_nobody_is_sent_to_chown_what_is_ours_or_above_the_directory(data, monkeypatch):
    assert explain(denied(data / "LOCK"), data).endswith(f"and this process runs as {user_name(ME)}")
    monkeypatch.setattr(os, "geteuid", lambda: OTHER)
    said = explain(denied(data.parent / "absent"), data.parent / "absent")
    assert f"; {data.parent} belongs to {user_name(ME)}" in said
    assert "chown -R" not in said


def test_a_directory_of_ours_that_takes_nothing_is_named_and_not_what_is_above_it(data):
    data.chmod(0o500)
    said = explain(denied(data / "shard-02" / "slots.used"), data)
    assert f"; {data} belongs to {user_name(ME)} (mode 0500), and this" in said
    said = explain(denied(data / "deeper" / "data"), data / "deeper" / "data")
    assert f"; {data} belongs to {user_name(ME)} (mode 0500), and this" in said


def test_the_command_works_for_odd_directories_and_users_without_a_name(data, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 4_000_000_000)
    odd = data.rename(data.parent / "my data")
    assert explain(denied(odd / "LOCK"), odd).endswith(f"(chown -R 4000000000 '{odd}')")


def test_other_errors_name_the_file_if_there_is_one(data):
    file = data / "x"
    assert explain(OSError(errno.EIO, "Input/output error", str(file)), data) == f"{file}: Input/output error"
    assert explain(OSError(errno.EIO, "Input/output error"), data) == "Input/output error"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (denied(Path("/data/shard-00/wal/1.wal")), True),
        (denied(Path("/data")), True),
        (denied(Path("/run/shard-0.sock")), False),
        (PermissionError(errno.EPERM, "Operation not permitted"), False),
        (OSError(errno.EIO, "Input/output error", "/data/x"), False),
    ],
)
def test_what_is_for_want_of_rights_to_the_directory(error, expected):
    assert is_denied(error, Path("/data")) is expected


def test_a_user_without_a_name_is_a_number():
    assert user_name(4_000_000_000) == "4000000000"
