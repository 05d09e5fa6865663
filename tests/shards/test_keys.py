"""Very many idempotency and dedup keys: no step of the loop, and no hold of the interpreter, grows with them."""

import json
import threading
from typing import Any

import msgpack
import pytest

from tests.shards.test_service import ask, serving
from topics import errors, limits
from topics.core import dedup, idempotency
from topics.core.idempotency import KeyWindow, digest_key
from topics.core.keyruns import RUN_KEYS, Run
from topics.errors import TopicsError
from topics.shards import keymemory, snapshot
from topics.shards.service import Service
from topics.testing.drafts import Draft
from topics.testing.driver import Driver
from topics.testing.faulty_files import FaultyFiles

MANY = 3 * RUN_KEYS


@pytest.fixture
def driver() -> Driver:
    return Driver().start()


def write_keys(driver: Driver, name: str, keys: int, **config: Any) -> None:
    drafts = [Draft(b"1", dedup=f"{name}{n}") for n in range(keys)]
    for at in range(0, keys, 500):
        driver.append(name, drafts[at : at + 500], config=config or None)
    driver.commit()


# --- checkpoints --------------------------------------------------------------------------------------------------


def test_a_checkpoint_packs_keys_when_it_writes_not_when_it_captures(driver: Driver, monkeypatch: pytest.MonkeyPatch):
    packed: list[int] = []
    encode = Run.encode

    def pack(run: Run) -> bytes:
        packed.append(len(run))
        return encode(run)

    monkeypatch.setattr(Run, "encode", pack)
    write_keys(driver, "t", MANY)
    work = driver.store.begin_checkpoint()
    for _ in work.capture():
        assert not packed
    write_keys(driver, "u", 5)  # it comes behind the capture: the next one stores it
    write_keys(driver, "t", MANY + 1)
    work.write()
    assert sum(packed) == MANY
    assert max(packed) <= RUN_KEYS
    for _ in work.install():
        pass
    driver.checkpoint()
    assert sum(packed) == MANY + 5 + 1
    driver.restart()
    driver.check_all()


def test_keys_of_an_abandoned_checkpoint_are_stored_by_the_next(driver: Driver):
    write_keys(driver, "t", MANY)
    work = driver.store.begin_checkpoint()
    for _ in work.capture():
        pass
    write_keys(driver, "t", MANY + 3)
    for _ in work.abandon():
        pass
    work.remove_litter()
    driver.checkpoint()
    stored = snapshot.read_snapshot(driver.store.files).keys
    assert [len(keys) for keys in stored.values()] == [36 * (MANY + 3)]
    driver.restart()
    driver.check_all()


def test_records_of_the_snapshot_hold_few_keys_each(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(snapshot, "KEYS_BYTES", 1000)
    pieces = [(n % 3, b"%036d" % n * 10) for n in range(20)]
    bodies = snapshot._records([], pieces, b"", 1, 1)[1:-2:2]
    found = [msgpack.unpackb(body) for body in bodies]
    assert [len(batch) for batch in found] == [3, 3, 3, 3, 3, 3, 2]
    assert [tuple(one) for batch in found for one in batch] == pieces


def test_a_rewrite_keeps_what_is_open(driver: Driver, monkeypatch: pytest.MonkeyPatch):
    write_keys(driver, "t", MANY)
    driver.checkpoint()
    monkeypatch.setattr(snapshot, "REWRITE_MIN_BYTES", 0)
    monkeypatch.setattr(snapshot, "REWRITE_FACTOR", 0)
    driver.append("t", [Draft(b"1")])
    driver.commit()
    driver.checkpoint()
    assert [len(keys) for keys in snapshot.read_snapshot(driver.store.files).keys.values()] == [36 * MANY]
    driver.restart()
    driver.check_all()


# --- forgetting ---------------------------------------------------------------------------------------------------


def table_of(driver: Driver, name: str) -> Any:
    keys = driver.topic(name).keys
    assert keys is not None
    return keys._table


@pytest.mark.parametrize("how", ["window", "removal"])
def test_keys_that_go_leave_memory_some_at_a_time(driver: Driver, how: str):
    write_keys(driver, "t", MANY, idempotency_window_ms=50)
    state, graves = driver.store.engine.state, driver.store.engine.graves
    table, kept = table_of(driver, "t"), 0
    if how == "window":
        driver.clock.advance(60)
        driver.append("t", [Draft(b"1", dedup="new")])
        kept = 1
    else:
        driver.remove("t")
    driver.commit()
    assert state.keys == kept
    before, steps = len(table), 0
    assert before >= MANY + kept - idempotency.TIDY_STEP  # the removal does the first step itself
    for _ in graves.bury():
        assert before - len(table) <= idempotency.TIDY_STEP
        before, steps = len(table), steps + 1
    assert steps >= MANY // idempotency.TIDY_STEP - 1
    assert len(table) == kept


def test_in_a_replay_nothing_is_left_for_later(driver: Driver):
    write_keys(driver, "t", MANY, idempotency_window_ms=50)
    driver.clock.advance(60)
    driver.append("t", [Draft(b"1", dedup="new")])
    driver.commit()
    driver.restart()
    assert len(table_of(driver, "t")) == 1


def test_topics_are_swept_some_at_a_time(driver: Driver, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(keymemory, "SWEEP_TOPICS", 3)
    for n in range(10):
        write_keys(driver, f"t{n}", 2, idempotency_window_ms=50)
    engine, now = driver.store.engine, driver.now()
    assert not list(engine.memory.sweep(now + 1000)), "there is room for far more"
    monkeypatch.setattr(limits, "IDEMPOTENCY_KEYS_MAX", 30)
    left = []
    for _ in engine.memory.sweep(now + 1000):
        left.append(engine.state.keys)
    assert left == [14, 8, 2, 0]
    assert not list(engine.memory.sweep(now + 1000))


def test_at_the_bound_a_write_looks_at_some_topics(driver: Driver, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(keymemory, "SWEEP_TOPICS", 3)
    for n in range(10):
        write_keys(driver, f"t{n}", 2, idempotency_window_ms=50 if n else 100_000)
    monkeypatch.setattr(limits, "IDEMPOTENCY_KEYS_MAX", 20)
    driver.clock.advance(keymemory.SWEEP_MS)
    engine = driver.store.engine
    driver.append("new", [Draft(b"1", dedup="a")])
    driver.commit()
    assert engine.state.keys == 15
    for n in range(2):
        driver.append("t0", [Draft(b"1", dedup=f"{n}-{m}") for m in range(6)])
        assert engine.state.keys == 15
    with pytest.raises(TopicsError) as refused:
        driver.append("t0", [Draft(b"1", dedup=f"{m}") for m in range(6)])
    assert refused.value.code == errors.THROTTLED
    driver.commit()
    driver.check_all()


# --- large writes -------------------------------------------------------------------------------------------------


def body(keys: int, **more: Any) -> bytes:
    return json.dumps({"records": [{"data": n, "dedup_key": f"k{n}"} for n in range(keys)], **more}).encode()


@pytest.mark.parametrize("durability", ["disk", "fsync", "ephemeral"])
async def test_keys_of_a_large_write_are_seen_to_in_a_thread(durability: str, monkeypatch: pytest.MonkeyPatch) -> None:
    files, loop = FaultyFiles(), threading.get_ident()
    looked: list[int] = []
    find, tell = KeyWindow.find, dedup.tell

    def elsewhere(self: KeyWindow, digest: bytes, *args: Any) -> Any:
        if digest != digest_key("one"):
            looked.append(threading.get_ident())
        return find(self, digest, *args)

    def one_by_one(*args: Any) -> None:
        raise AssertionError("a large write adds its keys together")

    def told(duplicates: Any) -> bytes:
        assert len(duplicates) < 100 or hasattr(duplicates, "text") or threading.get_ident() != loop
        return tell(duplicates)

    monkeypatch.setattr(KeyWindow, "find", elsewhere)
    monkeypatch.setattr(dedup, "tell", told)
    monkeypatch.setattr("topics.core.replies.tell", told)
    async with serving(files) as (service, connection):
        await connection.call("put", {"topic": "t"}, json.dumps({"durability": durability}).encode())
        with monkeypatch.context() as patch:
            patch.setattr(KeyWindow, "add", one_by_one)
            first = await ask(connection, "append", body(MANY))
        again = await ask(connection, "append", body(MANY + 10, idempotency_key="one"))
        once_more = await ask(connection, "append", body(MANY + 10, idempotency_key="one"))
        alone = await ask(connection, "append", body(MANY + 10))
        assert len(looked) == 3 * (MANY + 10)
        assert loop not in looked
        assert _keys(service) == MANY + 10 + 1
    assert (first["count"], "duplicates" in first) == (MANY, False)
    assert (again["count"], again["first_seq"], again["deduped"]) == (10, MANY + 1, False)
    assert again["duplicates"] == [{"index": n, "seq": n + 1} for n in range(MANY)]
    assert once_more == {**again, "deduped": True}
    assert alone["duplicates"] == [{"index": n, "seq": n + 1} for n in range(MANY + 10)]
    async with serving(files) as (service, connection):
        assert _keys(service) == (0 if durability == "ephemeral" else MANY + 10 + 1)
        count = (await ask(connection, "append", body(MANY + 11)))["count"]
        assert count == (MANY + 11 if durability == "ephemeral" else 1)


def _keys(service: Service) -> int:
    return service._engine.state.keys


async def test_a_large_write_that_makes_its_topic() -> None:
    async with serving() as (service, connection):
        twice = json.loads(body(MANY))
        twice["records"] += twice["records"]
        answer = await ask(connection, "append", json.dumps(twice).encode())
        assert (answer["created"], answer["count"], len(answer["duplicates"])) == (True, MANY, MANY)
        assert _keys(service) == MANY
        await ask(connection, "append", body(MANY + 1))
        assert _keys(service) == MANY + 1
