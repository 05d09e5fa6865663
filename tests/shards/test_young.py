"""Young collections come by calls while much waits, and not else."""

import gc
from types import SimpleNamespace
from typing import Any

import pytest

from topics import limits
from topics.shards.young import YoungCollections


@pytest.mark.parametrize(("in_flight", "collections"), [(limits.GC_IN_FLIGHT, 0), (limits.GC_IN_FLIGHT + 1, 3)])
def test_while_many_wait_there_is_one_after_so_many_calls(monkeypatch, in_flight, collections):
    seen = list[int]()
    monkeypatch.setattr(gc, "collect", seen.append)
    young, log = YoungCollections(), SimpleNamespace(last_lsn=10_000, durable_lsn=10_000 - in_flight)
    for _ in range(3 * limits.GC_CALLS):
        young.note_call(log)  # type: ignore[arg-type]
    assert seen == [1] * collections, "never the old ones: they are millions"


def test_it_looks_at_what_has_come_since_the_last_one(monkeypatch):
    """So that each is short."""
    monkeypatch.setattr(limits, "GC_CALLS", 1)
    log: Any = SimpleNamespace(last_lsn=10_000, durable_lsn=0)
    young, kept = YoungCollections(), list[list[int]]()
    gc.collect()
    gc.disable()
    try:
        kept.append([])
        young.note_call(log)
        assert not any(item is kept[0] for generation in (0, 1) for item in gc.get_objects(generation))
    finally:
        gc.enable()
