"""`topics verify` and `topics inspect` as a user meets them, on what a real server leaves."""

import contextlib
import json
import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.cli.test_main import ROOT, run
from topics.testing.server import Server

GOLDEN = Path(__file__).resolve().parents[1] / "golden"


def contents(directory: Path) -> dict[str, tuple[bytes, int]]:
    files = (path for path in directory.rglob("*") if path.is_file())
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What a server that was killed under load leaves: two shards with checkpoints and a log behind them."""
    with Server(tmp_path_factory.mktemp("verify") / "s", segment_max_events=100) as server:
        server.start().wait_ready()
        with httpx.Client(base_url=server.url) as client:
            for number in range(8):
                client.put(f"/v0/topics/t{number}", json={"durability": "fsync"}).raise_for_status()
            for batch in range(3):
                records = [{"data": f"secret-{batch}-{i}", "tag": "a"} for i in range(120)]
                for number in range(8):
                    client.post(f"/v0/topics/t{number}", json={"records": records}).raise_for_status()
                if batch < 2:
                    for shard in (0, 1):
                        server.ask_shard(shard, "checkpoint")
        busy = run("verify", str(server.data))
        assert busy.returncode == 2
        assert f"pid {server.process.pid}" in busy.stderr
        assert "stop it first" in busy.stderr
        server.kill_all()
        yield server.data


@pytest.fixture
def copy(left: Path, tmp_path: Path) -> Path:
    shutil.copytree(left, tmp_path / "data")
    return tmp_path / "data"


def verdict(directory: Path) -> tuple[int, list[tuple[str, str]]]:
    done = run("verify", "--json", str(directory))
    assert done.stderr == ""
    found = json.loads(done.stdout)
    damage = [row for row in found["findings"] if row["damage"]]
    assert found["clean"] is (done.returncode == 0) is (damage == [])
    return done.returncode, [(row["kind"], row["file"]) for row in damage]


def test_what_a_killed_server_leaves_is_whole_and_untouched(left: Path) -> None:
    before = contents(left)
    assert verdict(left) == (0, [])
    done = run("verify", str(left))
    assert done.returncode == 0
    assert "all is well. Checked 2 shards" in done.stdout
    assert contents(left) == before


def test_a_server_waits_for_nobody_who_is_done(copy: Path) -> None:
    """The lock is given back, and a directory without LOCK is checked, too."""
    assert verdict(copy)[0] == 0
    (copy / "LOCK").unlink()
    assert verdict(copy)[0] == 0
    assert not (copy / "LOCK").exists()


def test_damage_is_a_table_with_what_to_do(copy: Path) -> None:
    segment = sorted(copy.glob("shard-*/segments/*/*.data"))[0]
    data = bytearray(segment.read_bytes())
    data[len(data) // 2] ^= 1
    segment.write_bytes(data)
    index = sorted(copy.glob("shard-*/segments/*/*.idx"))[-1]
    index.unlink()
    names = [path.relative_to(copy).as_posix() for path in (segment, index)]
    assert verdict(copy) == (1, [("corrupt", names[0]), ("missing", names[1])])
    done = run("verify", str(copy))
    assert done.returncode == 1
    text = " ".join(done.stdout.replace("│", " ").split())
    for word in ("corrupt", "missing", segment.name, "tombstone", "index", "2 damaged"):
        assert word in text
    assert "secret-" not in done.stdout


@pytest.mark.parametrize(
    ("hurt", "found"),
    [
        (lambda d: (d / "SLOTS").unlink(), ("missing", "SLOTS")),
        (lambda d: (d / "SLOTS").write_text("{}"), ("corrupt", "SLOTS")),
        (lambda d: (d / "FORMAT").unlink(), ("missing", "FORMAT")),
        (lambda d: (d / "FORMAT").write_text("tropics 1\n"), ("corrupt", "FORMAT")),
        (lambda d: shutil.rmtree(d / "shard-01"), ("missing", "SLOTS")),
        (lambda d: mark_slots_of_the_other(d), ("corrupt", "shard-00/slots.used")),
    ],
    ids=["no map", "bad map", "no format", "bad format", "no shard", "foreign slots"],
)
def test_the_files_above_the_shards_are_checked(copy: Path, hurt, found) -> None:
    hurt(copy)
    status, rows = verdict(copy)
    assert status == 1
    assert found in rows


def mark_slots_of_the_other(directory: Path) -> None:
    slots = json.loads((directory / "SLOTS").read_text())["slots"]
    used = (directory / "shard-01/slots.used").read_bytes()
    free = next(s for s, owner in enumerate(slots) if owner == 1 and not used[s // 8] >> s % 8 & 1)
    path = directory / "shard-00/slots.used"
    bits = bytearray(path.read_bytes())
    bits[free // 8] |= 1 << free % 8
    path.write_bytes(bits)


def test_what_cannot_be_checked_is_neither_clean_nor_damaged(copy: Path, tmp_path: Path) -> None:
    assert run("verify", str(tmp_path / "nowhere")).returncode == 2
    done = run("verify", str(Path(__file__).parent))
    assert (done.returncode, done.stdout) == (2, "")
    assert "not a data directory" in done.stderr
    (copy / "FORMAT").write_text("topics 2\n")
    done = run("verify", str(copy))
    assert done.returncode == 2
    assert "newer" in done.stderr


def test_a_terminal_gets_a_bar(left: Path) -> None:
    ours, theirs = pty.openpty()
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm"}
    command = [sys.executable, "-m", "topics.cli", "verify", str(left)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=theirs, env=env, timeout=60)
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # the other end is closed
        while piece := os.read(ours, 65536):
            shown += piece
    os.close(ours)
    assert done.returncode == 0
    assert b"checking" in shown
    assert b"checking" not in done.stdout


# --- inspect ------------------------------------------------------------------------------------------------------


def lines(path: Path, *flags: str) -> list[dict]:
    done = run("inspect", "--json", *flags, str(path))
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("path", sorted(path for path in GOLDEN.rglob("*") if path.is_file()), ids=lambda p: p.name)
def test_every_golden_file_is_recognised(path: Path) -> None:
    found = lines(path)
    assert found[0]["offset"] == 0
    assert found[0]["kind"] in {"log file", "segment", "pack", "index", "snapshot", "used slots", "head register"}
    assert not any(line.get("check") is False for line in found)
    assert not any("text" in line for line in found)


def test_frames_of_the_log_tell_what_they_are() -> None:
    first, *frames = lines(GOLDEN / "wal/0000000001.wal")
    assert (first["kind"], first["first_lsn"]) == ("log file", 1)
    assert [frame["lsn"] for frame in frames] == list(range(1, 12))
    append = frames[4]
    assert (append["kind"], append["topic_id"], append["epoch"], append["first_seq"], append["n"]) == (
        "appended", 7, 3, 5, 7,
    )  # fmt: skip
    _, marks, *others = lines(GOLDEN / "wal/0000000002.wal")
    assert marks["kind"] == "copies marked"
    assert not any(frame["kind"] == "unknown" for frame in (*frames, *others))


def test_records_tell_what_they_have_beside_their_text() -> None:
    _, jobs, plain = lines(GOLDEN / "packs/pack-0000000003.data")
    assert {name: jobs.get(name) for name in ("priorities", "not_before", "expires", "origins")} == {
        "priorities": 2, "not_before": 2, "expires": None, "origins": 2,
    }  # fmt: skip
    assert not {"priorities", "not_before", "expires", "origins"} & plain.keys()
    (_, *shown), (_, *expiring) = (
        [line for line in lines(GOLDEN / f"packs/pack-000000000{number}.data", "--data") if line["kind"] != "block"]
        for number in (3, 4)
    )
    terms = [{k: v for k, v in line.items() if k not in ("kind", "text", "deleted", "tag")} for line in shown]
    assert terms == [
        {"seq": 1, "priority": 9},
        {"seq": 2, "not_before": 61_000},
        {"seq": 3, "origin": bytes(range(16)).hex()},
        {"seq": 4, "priority": 3, "not_before": 2**40, "origin": bytes(16).hex()},
        {"seq": 7},
    ]
    assert [line.get("expires") for line in expiring] == [None, 6000, 2**40, 7000, None, 8000]


def test_payloads_are_shown_only_on_demand(left: Path) -> None:
    for path in [*left.glob("shard-*/wal/*.wal"), *left.glob("shard-*/segments/*/*")]:
        plain = run("inspect", str(path))
        assert plain.returncode == 0
        assert "secret-" not in plain.stdout
        assert ("secret-" in run("inspect", "--data", str(path)).stdout) is (path.suffix != ".idx")


def test_what_does_not_check_is_marked(copy: Path) -> None:
    path = max(copy.glob("shard-00/wal/*.wal"))
    data = bytearray(path.read_bytes())
    at = data.index(b"secret-2-7")
    data[at] ^= 1
    path.write_bytes(data)
    done = run("inspect", str(path))
    assert done.returncode == 1
    (bad,) = (line for line in done.stdout.splitlines() if " BAD " in line)
    assert int(bad.split()[0]) < at


def test_other_files_are_refused() -> None:
    done = run("inspect", __file__)
    assert (done.returncode, done.stdout) == (2, "")
    assert "not" in done.stderr or "neither" in done.stderr
    assert run("inspect", __file__ + ".none").returncode == 2
