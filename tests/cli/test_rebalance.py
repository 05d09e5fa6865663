"""`topics shards rebalance` on the data of a real server: everything that was promised holds on the new shards."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.conftest import Commands
from topics.cli.failures import REFUSED, Failure
from topics.cli.rebalance import rebalance
from topics.ids import slot_of
from topics.owners import user_name
from topics.supervisor import slotmap, slotswap
from topics.testing.server import Server, wait_until

TOPICS = [f"t-{n}" for n in range(24)]
QUEUES = [f"q-{n}" for n in range(8)]


class Calls:
    def __init__(self, server: Server) -> None:
        self._http = httpx.Client(base_url=server.url, timeout=30, headers={"accept": "application/json"})

    def post(self, path: str, **body: Any) -> Any:
        return self._ok(self._http.post(f"/v0/{path}", json=body))

    def put(self, path: str, **body: Any) -> Any:
        return self._ok(self._http.put(f"/v0/{path}", json=body))

    def get(self, path: str) -> Any:
        return self._ok(self._http.get(f"/v0/{path}"))

    def _ok(self, answer: httpx.Response) -> Any:
        assert answer.is_success, answer.text
        return {key: value for key, value in answer.json().items() if key != "performance"}

    def read(self, topic: str) -> Any:
        return self.post(f"topics/{topic}/diff", limit=1000, include_tags=True)


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path / "server") as made:
        yield made.start().wait_ready()


@pytest.fixture
def run(own: Server, tmp_path: Path) -> Commands:
    return Commands(own, tmp_path)


def fill(calls: Calls) -> None:
    for number, name in enumerate(TOPICS):
        calls.put(f"topics/{name}", durability=("fsync", "disk", "memory")[number % 3], compression="zstd")
        for n in range(3):
            records = [{"data": [name, n, i], "tag": f"g-{i % 4}"} for i in range(40)]
            calls.post(f"topics/{name}", records=records, idempotency_key=f"key-{n}")
        calls.post(f"topics/{name}/delete", match="g-1")
        calls.post(f"topics/{name}/delete", before_seq=10)
    for name in QUEUES:
        calls.put(f"topics/{name}", type="queue", durable=True, leases_durable=True, lease_ms=3_600_000)
        calls.post(f"topics/{name}", records=[{"data": n} for n in range(6)])
        claimed = calls.post(f"topics/{name}/claim", node="w", max=3)["claimed"]
        calls.post(f"topics/{name}/ack", node="w", seqs=[claimed[0]["$seq"]])
    for name in TOPICS[:12]:
        calls.post("watch", topics={name: {}})
    for n in range(0, 8, 2):  # pairs of topics that may be anywhere
        calls.put(f"routers/r-{n}", source=TOPICS[n], dest=f"copy-{n}", create_dest=True)
        calls.put(f"topics/{TOPICS[n]}/groups/g", **{"from": "earliest"})
        page = calls.post(f"topics/{TOPICS[n]}/groups/g/fetch", limit=7, consumer="c")
        calls.post(f"topics/{TOPICS[n]}/groups/g/ack", seq=page["records"][-1]["$seq"], consumer="c")


def state_of(calls: Calls) -> dict[str, Any]:
    """What clients can see, and must see again."""
    seen: dict[str, Any] = {name: calls.read(name) for name in (*TOPICS, *(f"copy-{n}" for n in range(0, 8, 2)))}
    for name in QUEUES:
        seen[name] = calls.get(f"topics/{name}")["queue"]
    for n in range(0, 8, 2):
        seen[f"group {n}"] = calls.get(f"topics/{TOPICS[n]}/groups/g")["cursor_seq"]
    seen["sessions"] = calls.get("metrics")["topics_watch_sessions"]
    seen["routers"] = sorted(router["router"] for router in calls.get("routers")["routers"])
    return seen


def owners(server: Server) -> dict[str, int]:
    found = slotmap.load(server.data)
    assert found is not None
    return {name: found.slots[slot_of(name)] for name in (*TOPICS, *QUEUES)}


def settled(calls: Calls) -> dict[str, Any]:
    """Once copies have come: routers begin at the head, so of what is written now."""
    for n in range(0, 8, 2):
        calls.post(f"topics/{TOPICS[n]}", records=[{"data": ["copied", i]} for i in range(5)])
    wait_until(lambda: all(calls.read(f"copy-{n}")["head_seq"] == 5 for n in range(0, 8, 2)), "the copies")
    return state_of(calls)


def test_topics_move_to_new_shards_and_nothing_else_changes(own: Server, run: Commands) -> None:
    calls = Calls(own)
    fill(calls)
    before = settled(calls)
    assert before["sessions"] == 12
    refused = run("shards", "rebalance", "--shards", "4")
    assert refused.returncode == 5
    assert "server" in refused.stderr
    assert own.stop() == 0
    placed = owners(own)
    assert set(placed.values()) == {0, 1}

    planned = json.loads(run.ok("shards", "rebalance", "--shards", "4", "--dry-run", "--json"))
    assert owners(own) == placed, "a dry run changes nothing"
    assert {row["from"] for row in planned["shards"][2:]} == {0, 1}, "both are about as large"
    done = json.loads(run.ok("shards", "rebalance", "--shards", "4", "--json"))
    assert done["shards"] == planned["shards"]
    assert done["moved_slots"] == planned["moved_slots"] > 0
    moved = owners(own)
    assert set(moved.values()) == {0, 1, 2, 3}
    run.ok("verify", str(own.data))
    assert not list(own.data.glob("rebalance*"))

    own.start(shards=4).wait_ready()
    calls = Calls(own)
    assert state_of(calls) == before
    for name in TOPICS:
        again = calls.post(f"topics/{name}", records=[{"data": 0}], idempotency_key="key-2")
        assert again["deduped"] is True
        written = calls.post(f"topics/{name}", records=[{"data": "after"}])
        assert written["first_seq"] == before[name]["head_seq"] + 1
    for name in QUEUES:
        leased = calls.post(f"topics/{name}/claim", node="other", max=10)["claimed"]
        assert [job["$seq"] for job in leased] == [4, 5, 6], "the two that are leased are still somebody's"
        assert calls.post(f"topics/{name}/ack", node="w", seqs=[2, 3])["acked"] == 2
    for n in range(0, 8, 2):
        wait_until(lambda: calls.read(f"copy-{n}")["records"][-1]["data"] == "after", "the copy of what is new")  # noqa: B023
        assert [record["$seq"] for record in calls.read(f"copy-{n}")["records"]] == list(range(1, 7))
    assert own.stop() == 0
    run.ok("verify", str(own.data))
    again = json.loads(run.ok("shards", "rebalance", "--shards", "4", "--json"))
    assert again["moved_slots"] == 0, "every shard holds something now"


def test_a_rebalance_that_was_cut_short_is_finished_by_the_next_start(
    own: Server, run: Commands, tmp_path: Path
) -> None:
    """Cut between two directories, the worst place: one shard is new, the other one is old."""
    calls = Calls(own)
    for name in TOPICS:
        calls.put(f"topics/{name}", durable=True)
        calls.post(f"topics/{name}", records=[{"data": [name, n]} for n in range(5)])
    before = {name: calls.read(name) for name in TOPICS}
    own.kill_all()  # not even a clean stop
    twin = tmp_path / "twin"
    shutil.copytree(own.data, twin)
    run.ok("shards", "rebalance", "--shards", "3", "--data-dir", str(twin))
    text = (twin / slotmap.FILE).read_text()
    moved = [name for name in ("shard-00", "shard-01", "shard-02") if _marks(twin / name) != _marks(own.data / name)]
    assert len(moved) == 2
    made = slotswap.begin(own.data)
    for name in moved:
        shutil.copytree(twin / name, made / name)
    intent = {"version": 1, "directories": moved, "files": {slotmap.FILE: text}}
    (own.data / slotswap.FILE).write_text(json.dumps(intent))
    own.start(shards=3).wait_ready()
    calls = Calls(own)
    assert {name: calls.read(name) for name in TOPICS} == before
    assert not list(own.data.glob("rebalance*"))
    assert {owners(own)[name] for name in TOPICS} == {0, 1, 2}


def test_copies_of_what_was_deleted_come_back_after_a_crash_and_a_rebalance(own: Server, run: Commands) -> None:
    """They are in no file, and the records they were made of are dead: whoever moves the source keeps those."""
    calls = Calls(own)
    names = TOPICS[::2]
    for name in names:
        calls.put(f"topics/{name}", durable=True)
        calls.put(f"topics/copy-{name}", durable=True)
        calls.put(f"routers/{name}", source=name, dest=f"copy-{name}")
        calls.post(f"topics/{name}", records=[{"data": [name, n]} for n in range(5)])
    before = {name: calls.read(f"copy-{name}")["records"] for name in names}
    assert all(len(records) == 5 for records in before.values())
    for name in names:
        assert calls.post(f"topics/{name}/delete", before_seq=6)["deleted"] == 5
    own.kill_all()
    run.ok("shards", "rebalance", "--shards", "4")
    own.start(shards=4).wait_ready()
    calls = Calls(own)
    for name in names:
        page = calls.read(f"copy-{name}")
        assert page["tombstone"] is None
        assert [record["data"] for record in page["records"]] == [record["data"] for record in before[name]]


def _marks(shard: Path) -> bytes:
    path = shard / slotmap.USED_FILE
    return path.read_bytes() if path.exists() else b""


@pytest.mark.parametrize("spoiled", ["snapshot", "block"])
def test_damage_is_refused_and_nothing_is_changed(own: Server, run: Commands, spoiled: str) -> None:
    calls = Calls(own)
    for name in TOPICS:
        calls.post(f"topics/{name}", records=[{"data": "x" * 100} for _ in range(5)])
    assert own.stop() == 0
    victims = sorted(own.data.glob("shard-00/snapshot.*" if spoiled == "snapshot" else "shard-00/packs/*.data"))
    data = bytearray(victims[-1].read_bytes())
    data[3 if spoiled == "snapshot" else len(data) // 2] ^= 1
    victims[-1].write_bytes(data)
    before = {path: path.read_bytes() for path in own.data.rglob("*") if path.is_file()}
    refused = run("shards", "rebalance", "--shards", "4")
    assert refused.returncode == 1, refused.stdout
    assert refused.stderr
    assert {path: path.read_bytes() for path in own.data.rglob("*") if path.is_file()} == before


def test_what_is_no_data_directory_is_refused(run: Commands, tmp_path: Path) -> None:
    refused = run("shards", "rebalance", "--data-dir", str(tmp_path / "nothing"))
    assert refused.returncode == 1
    assert not (tmp_path / "nothing").exists()


def test_only_the_owner_of_the_directory_may_change_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root could, and the server would not start on what it leaves."""
    (tmp_path / "SLOTS").write_text("{}")
    owner = user_name(os.geteuid())
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    monkeypatch.setenv("TOPICS_SHARDS", "3")  # which sudo does not pass on
    assert rebalance.callback is not None
    for wanted, shards in ((4, 4), (None, 3)):
        with pytest.raises(Failure) as caught:
            rebalance.callback(wanted=wanted, dry_run=False, directory=str(tmp_path), as_json=False)
        assert (caught.value.status, caught.value.code) == (REFUSED, "not_owner")
        assert caught.value.message.startswith(f"{tmp_path} belongs to {owner}, and the server could not open what ")
        said = f"Run: sudo -u {owner} topics shards rebalance --shards {shards} --data-dir {tmp_path}"
        assert caught.value.message.endswith(said)
    assert [path.name for path in tmp_path.iterdir()] == ["SLOTS"]


def test_anybody_who_can_read_it_may_ask_what_would_be_done(own: Server, run: Commands) -> None:
    if os.geteuid() != 0:
        pytest.skip("giving a directory away needs root")
    assert own.stop() == 0
    os.chown(own.data, 65534, 65534)
    run.ok("shards", "rebalance", "--shards", "4", "--dry-run")
    refused = run("shards", "rebalance", "--shards", "4")
    assert refused.returncode == 1
    assert "not_owner" in refused.stderr
    assert len(list(own.data.glob("shard-*"))) == 2
