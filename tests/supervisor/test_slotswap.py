"""Directories that are swapped all or none, whatever step a crash comes at."""

import os
import shutil
from pathlib import Path

import pytest

from topics.supervisor import datadir, slotmap, slotswap
from topics.supervisor.datadir import DataDirError

NAMES = ["shard-00", "shard-02"]


class Crash(Exception):
    pass


def make(data_dir: Path) -> None:
    for name in ("shard-00", "shard-01", "shard-02"):
        (data_dir / name).mkdir()
        (data_dir / name / "which").write_text(f"old {name}")
    (data_dir / "SLOTS").write_text("old map")
    made = slotswap.begin(data_dir)
    for name in NAMES:
        (made / name).mkdir()
        (made / name / "which").write_text(f"new {name}")


def state(data_dir: Path) -> dict[str, str]:
    found = {path.parent.name: path.read_text() for path in data_dir.glob("shard-*/which")}
    return found | {"SLOTS": (data_dir / "SLOTS").read_text()}


OLD = {"shard-00": "old shard-00", "shard-01": "old shard-01", "shard-02": "old shard-02", "SLOTS": "old map"}
NEW = {"shard-00": "new shard-00", "shard-01": "old shard-01", "shard-02": "new shard-02", "SLOTS": "new map"}


def test_a_swap_leaves_nothing_behind(tmp_path):
    make(tmp_path)
    slotswap.commit(tmp_path, NAMES, {"SLOTS": "new map"})
    assert state(tmp_path) == NEW
    assert sorted(path.name for path in tmp_path.iterdir()) == ["SLOTS", "shard-00", "shard-01", "shard-02"]


def crash_at(monkeypatch: pytest.MonkeyPatch, step: int) -> list[str]:
    """Every call that changes the directory counts; the one with this number is not made, nor any after it."""
    calls: list[str] = []

    def watched(name: str, really):
        def call(*args, **options):
            if len(calls) >= step:
                raise Crash
            calls.append(name)
            return really(*args, **options)

        return call

    for module, name in ((os, "rename"), (os, "replace"), (os, "unlink"), (os, "mkdir"), (datadir, "sync_dir")):
        monkeypatch.setattr(module, name, watched(name, getattr(module, name)))
    monkeypatch.setattr(slotswap, "sync_dir", datadir.sync_dir)
    monkeypatch.setattr(shutil, "rmtree", watched("rmtree", shutil.rmtree))
    return calls


def test_a_crash_at_any_step_leaves_the_old_or_can_be_finished(tmp_path, monkeypatch):
    outcomes = []
    for step in range(100):
        data_dir = tmp_path / f"at-{step}"
        data_dir.mkdir()
        make(data_dir)
        with monkeypatch.context() as patch:
            crash_at(patch, step)
            try:
                slotswap.commit(data_dir, NAMES, {"SLOTS": "new map"})
                done = True
            except Crash:
                done = False
        pending = slotswap.is_pending(data_dir)
        slotswap.finish(data_dir)
        outcomes.append("new" if state(data_dir) == NEW else "old" if state(data_dir) == OLD else "neither")
        assert sorted(path.name for path in data_dir.iterdir() if path.suffix != ".tmp") == sorted(OLD)
        if pending:
            assert outcomes[-1] == "new"
        if done:
            break
    assert set(outcomes) == {"old", "new"}
    assert outcomes == sorted(outcomes, reverse=True), "from some step on it is always the new one"
    assert len(outcomes) > 12


def test_what_came_to_nothing_is_removed(tmp_path):
    make(tmp_path)
    made = slotswap.begin(tmp_path)
    assert list(made.iterdir()) == []
    assert state(tmp_path) == OLD


@pytest.mark.parametrize("text", ["", "{}", '{"version":2,"directories":[],"files":{}}'])
def test_a_damaged_intent_stops_everything(tmp_path, text):
    make(tmp_path)
    (tmp_path / slotswap.FILE).write_text(text)
    with pytest.raises(DataDirError, match=slotswap.FILE):
        slotmap.settle(tmp_path, 2)
    assert state(tmp_path) == OLD
