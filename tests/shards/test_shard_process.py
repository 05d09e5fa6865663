"""The shard as a real process: what it answers, how it ends, and what a kill leaves."""

import contextlib
import os
import random
from itertools import pairwise
from typing import Any

import msgspec
import pytest
import trio

from topics import errors
from topics.rpc.errors import RpcError
from topics.testing.shard_process import ShardClient, ShardProcess


async def test_first_append_read_and_state(shard: ShardProcess) -> None:
    shard.start()
    async with shard.connected() as client:
        created = await client.put("orders", durable=True)
        assert created["created"] is True
        assert created["config"]["durability"] == "fsync"
        reply = await client.append("orders", {"n": 1}, None)
        assert (reply["first_seq"], reply["last_seq"], reply["seqs"], reply["head_seq"]) == (1, 2, [1, 2], 2)
        page = await client.diff("orders")
        assert [record["data"] for record in page["records"]] == [{"n": 1}, None]
        state = await client.call("state", "orders")
        assert (state["head_seq"], state["earliest_seq"], state["next_seq"], state["count"]) == (2, 1, 3, 2)
        assert state["last_read_ts"] >= state["last_write_ts"]


async def test_a_write_creates_its_topic_and_says_so(shard: ShardProcess) -> None:
    shard.start()
    async with shard.connected() as client:
        assert (await client.append("new", 1, config={"cap_records": 5}))["created"] is True
        assert (await client.append("new", 1))["created"] is False
        assert (await client.call("state", "new"))["config"]["cap_records"] == 5
        assert (await client.refused("append", "typo", {"records": [{"data": 1}], "create": False})).code == (
            errors.TOPIC_NOT_FOUND
        )


async def test_sigterm_leaves_a_checkpoint_and_exit_0(shard: ShardProcess) -> None:
    shard.start()
    async with shard.connected() as client:
        await client.append("t", *range(100))
    assert shard.stop() == 0
    assert os.listdir(shard.directory / "packs")
    shard.start()
    async with shard.connected() as client:
        assert [record["data"] for record in await client.read_all("t")] == list(range(100))


async def test_a_closed_lifeline_ends_the_shard(shard: ShardProcess, tmp_path: object) -> None:
    read_end, write_end = os.pipe()
    shard._args = ("--lifeline", str(read_end))
    shard.start(pass_fds=(read_end,))
    async with shard.connected() as client:
        await client.append("t", 1)
    os.close(read_end)
    os.close(write_end)
    assert shard.process is not None
    assert shard.process.wait(timeout=30) == 0


async def test_a_long_poll_wakes_on_append_and_ends_in_time(shard: ShardProcess) -> None:
    shard.start()
    async with shard.connected() as client:
        await client.append("t", 1)
        pages: list[object] = []

        async def poll() -> None:
            pages.append(await client.diff("t", from_seq=1, wait_ms=30_000))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(poll)
            await client.call("state", "t")  # the poll was sent before this and answered nothing
            await client.append("t", 2)
        assert [record["data"] for record in pages[0]["records"]] == [2]  # type: ignore[index]
        nothing = await client.diff("t", from_seq=2, wait_ms=20)
        assert nothing["records"] == []
        assert nothing["caught_up"] is True


async def test_a_poll_on_a_removed_topic_is_told(shard: ShardProcess) -> None:
    shard.start()
    async with shard.connected() as client:
        await client.append("t", 1)
        refusals: list[str] = []

        async def poll() -> None:
            refusals.append((await client.refused("diff", "t", {"from_seq": 1, "wait_ms": 30_000})).code)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(poll)
            await client.call("state", "t")
            assert (await client.call("remove", "t"))["deleted"] is True
        assert refusals == [errors.TOPIC_NOT_FOUND]


async def test_large_writes_keep_their_order_with_small_ones(shard: ShardProcess) -> None:
    """A body that is decoded and rendered in a thread holds its topic, and only its topic."""
    shard.start()
    async with shard.connected() as client:
        await client.append("t", "first")
        acked: dict[int, str] = {}

        async def write(label: str, count: int) -> None:
            reply = await client.append("t", *[f"{label}-{i}" + "x" * 200 for i in range(count)])
            acked.update({seq: f"{label}-{i}" for i, seq in enumerate(reply["seqs"])})

        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(write, f"w{number}", 4000 if number % 5 == 0 else 1)
        records = await client.read_all("t")
        assert [record["$seq"] for record in records] == list(range(1, len(records) + 1))
        assert {r["$seq"]: r["data"].rstrip("x") for r in records[1:]} == acked


async def test_large_writes_race_to_create_their_topic(shard: ShardProcess) -> None:
    shard.start()
    async with shard.connected() as client:
        replies: list[Any] = []

        async def write(label: str) -> None:
            replies.append(await client.append("t", *[f"{label}-{i}" + "x" * 100 for i in range(2000)]))

        async with trio.open_nursery() as nursery:
            for number in range(6):
                nursery.start_soon(write, f"w{number}")
        assert sorted(reply["created"] for reply in replies) == [False] * 5 + [True]
        assert sorted(seq for reply in replies for seq in reply["seqs"]) == list(range(1, 12_001))
        records = await client.read_all("t")
        labels = [record["data"].split("-")[0] for record in records]
        assert sum(one != other for one, other in pairwise(labels)) == 5, "each write is one run of seqs"


async def test_tag_deletes_reach_memory_packs_and_segments(shard: ShardProcess) -> None:
    shard._args = ("--segment-events", "50")
    shard.start()
    async with shard.connected() as client:
        await client.put("t", durable=True)
        for batch in range(4):
            records = [{"data": i, "tag": f"u{i % 7}:{batch}"} for i in range(60)]
            await client.call("append", "t", {"records": records})
            if batch < 3:
                await client.call("checkpoint")
        gone = await client.call("delete", "t", {"match": "u3:*"})
        assert gone["deleted"] == 4 * 9 == 240 - gone["count"]
        assert (await client.call("delete", "t", {"match": "u3:*"}))["deleted"] == 0
        assert (await client.call("delete", "t", {"match": ["tag", "Eq", "u1:0"], "before_seq": 20}))["deleted"] == 3
        left = [(r["$seq"], r["data"]) for r in await client.read_all("t")]
        assert all(data % 7 != 3 for _, data in left)
    shard.kill()
    shard.start()
    async with shard.connected() as client:
        assert [(r["$seq"], r["data"]) for r in await client.read_all("t")] == left


async def test_list_pages_in_name_order_within_prefixes(shard: ShardProcess) -> None:
    shard.start()
    async with shard.connected() as client:
        for name in ("b:2", "a:1", "b:1", "c:1"):
            await client.put(name)
        page = await client.call("list", limit=2)
        assert (page["names"], page["more"]) == (["a:1", "b:1"], True)
        page = await client.call("list", limit=10, after="b:1", prefixes=["b:", "c"])
        assert (page["names"], page["more"]) == (["b:2", "c:1"], False)
        assert (await client.call("list", limit=10, prefix="b:"))["names"] == ["b:1", "b:2"]


async def test_bad_requests_are_refused_and_lose_nothing(shard: ShardProcess) -> None:
    shard.start()
    async with shard.connected() as client:
        await client.append("t", 1)
        for method, topic, body in (
            ("append", "t", b"{"),
            ("append", "t", b'{"records":[]}'),
            ("append", "t", b'{"records":[{"data":"\xff"}]}'),
            ("append", "t", b'{"records":[{"tag":"x"}]}'),
            ("append", "-bad-", b'{"records":[{"data":1}]}'),
            ("diff", "t", b'{"from_seq":-1}'),
            ("delete", "t", b"{}"),
            ("delete", "t", b'{"match":["tag","Glob","x"]}'),
            ("put", "t", b'{"no_such_field":1}'),
        ):
            assert (await client.refused(method, topic, body)).code == errors.INVALID_REQUEST, (method, body)
        assert (await client.call("state", "t"))["count"] == 1


async def test_idempotent_retries_survive_a_kill(shard: ShardProcess) -> None:
    shard.start()
    async with shard.connected() as client:
        await client.put("t", durable=True)
        first = await client.append("t", "a", "b", idempotency_key="k1")
    shard.kill()
    shard.start()
    async with shard.connected() as client:
        again = await client.append("t", "other", idempotency_key="k1")
        assert (again["seqs"], again["deduped"]) == (first["seqs"], True)
        assert (await client.call("state", "t"))["count"] == 2


# --- kills ----------------------------------------------------------------------------------------------------------

# What a decoder does not show: how numbers and strings are written, white space, the order of keys and second ones.
PAYLOADS = [
    rb'{"z":1.0E+2,"a":"LABEL","m":-0.0,"a":"LABEL"}',
    rb'[ 100, 1.0E+2 ,1e2,100.0,"LABEL","\u00e9\/\u0041" ]',
    '{"LABEL" : "é",\r\n\t"b":{ } ,"a":[ ], "é":"\\u00E9"}'.encode(),
    '"LABEL é\\n\\u000A\\u000a"'.encode(),
    b'{"LABEL":12345678901234567890.00}',
]
METAS = [b"", rb'{"z" : "\u00e9","a":"x"}', '{"a":"x","z":"é"}'.encode()]


class Stored(msgspec.Struct):
    seq: int = msgspec.field(name="$seq")
    data: msgspec.Raw
    meta: msgspec.Raw = msgspec.Raw()


class Told:
    """What clients have been told of a topic: which record has which seq, and how it reads, byte for byte."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.acked: dict[int, tuple[bytes, bytes]] = {}
        self.texts: dict[int, bytes] = {}

    async def append(self, client: ShardClient, records: list[tuple[bytes, bytes]]) -> None:
        texts = [b'{"data":%s%s}' % (data, b',"meta":%s' % meta if meta else b"") for data, meta in records]
        reply = await client.call("append", self.topic, b'{"records":[%s]}' % b",".join(texts))
        for seq, record in zip(reply["seqs"], records, strict=True):
            assert seq not in self.acked, "a seq was given twice"
            self.acked[seq] = record

    def read(self, text: bytes) -> int:
        """Its seq. A record reads as it was written, and as it did before."""
        record = msgspec.json.decode(text, type=Stored)
        found = bytes(record.data), bytes(record.meta)
        assert self.acked.get(record.seq, found) == found
        assert self.texts.setdefault(record.seq, text) == text
        return record.seq


@pytest.mark.slow
async def test_twenty_kills_under_load(shard: ShardProcess) -> None:
    """Every acked fsync append is there byte for byte, seqs are contiguous, and disk topics never reuse a seq."""
    rng = random.Random(20)
    safe, loose = Told("safe"), Told("loose")
    number = 0

    def some(producer: int) -> tuple[bytes, bytes]:
        nonlocal number
        number += 1
        label = f"{producer}-{number}-".encode() + b"x" * rng.randrange(120)
        return rng.choice(PAYLOADS).replace(b"LABEL", label), rng.choice(METAS)

    async def produce(client: ShardClient, told: Told, producer: int) -> None:
        while True:
            try:
                await told.append(client, [some(producer) for _ in range(rng.choice([1, 1, 1, 7]))])
            except (RpcError, errors.TopicsError):
                return

    for round_number in range(20):
        shard.start()
        async with shard.connected() as client:
            await client.put("safe", durable=True)
            await client.put("loose")
            await check(client, safe)
            await check_loose(client, loose)
            async with trio.open_nursery() as nursery:
                for producer in range(8):
                    nursery.start_soon(produce, client, safe, producer)
                    nursery.start_soon(produce, client, loose, producer)
                target = len(safe.acked) + rng.randrange(50, 800)
                with trio.fail_after(60):
                    while len(safe.acked) < target:
                        await trio.sleep(0.002)
                        if round_number % 4 == 3 and rng.random() < 0.02:
                            nursery.start_soon(try_checkpoint, client)
                shard.kill()
    shard.start()
    async with shard.connected() as client:
        await check(client, safe)
        await check_loose(client, loose)
    assert shard.stop() == 0


async def try_checkpoint(client: ShardClient) -> None:
    try:
        await client.call("checkpoint")
    except (RpcError, errors.TopicsError):
        return


async def check(client: ShardClient, told: Told) -> None:
    seqs: list[int] = []
    async for page in client.raw_pages(told.topic):
        assert page.tombstone is None
        seqs += [told.read(bytes(text)) for text in page.records]
    assert seqs == list(range(1, len(seqs) + 1))
    assert set(told.acked) <= set(seqs)


async def check_loose(client: ShardClient, told: Told) -> None:
    """On a disk topic an acked record is there, or a tombstone covers it."""
    seen: set[int] = set()
    gaps: list[tuple[int, int]] = []
    async for page in client.raw_pages(told.topic):
        if page.tombstone:
            assert page.tombstone["reason"] == "crash"
            gaps.append((page.tombstone["gap_from"], page.tombstone["gap_to"]))
        seen.update(told.read(bytes(text)) for text in page.records)
    for seq in set(told.acked) - seen:
        assert any(first <= seq <= last for first, last in gaps), seq
        del told.acked[seq]


async def test_a_full_disk_refuses_writes_and_recovers(shard: ShardProcess) -> None:
    """Space is judged at admission; reads and deletes go on, and writes resume by themselves."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    os.makedirs(shard.directory)
    if os.system(f"mount -t tmpfs -o size=48m tmpfs {shard.directory}") != 0:
        pytest.skip("cannot mount a tmpfs here")
    try:
        shard.start()
        async with shard.connected() as client:
            await client.append("t", "small")
            filler = shard.directory / "filler"
            _fill(filler, leave=6 << 20)
            with trio.fail_after(30):
                while (error := await _try_append(client)) is None:
                    await trio.sleep(0.01)
            assert error.code == errors.STORAGE_FULL
            assert (await client.diff("t"))["records"][0]["data"] == "small"
            assert (await client.call("delete", "t", {"before_seq": 2}))["deleted"] == 1
            await client.put("kept", durable=True)
        _fill(filler, leave=0)
        shard.kill()
        shard.start()  # with nothing free: it must come up to be read
        async with shard.connected() as client:
            error = await _try_append(client)
            assert error is not None
            assert error.code == errors.STORAGE_FULL
            assert (await client.call("state", "kept"))["count"] == 0
            filler.unlink()
            with trio.fail_after(30):
                while await _try_append(client) is not None:
                    await trio.sleep(0.01)
        assert shard.stop() == 0
    finally:
        shard.clean_up_process()
        os.system(f"umount {shard.directory}")


def _fill(path: os.PathLike[str], leave: int) -> None:
    """Take the free space, a little at a time: the shard may be taking some itself."""
    with open(path, "ab") as file, contextlib.suppress(OSError):
        while (stat := os.statvfs(os.path.dirname(path))).f_bavail * stat.f_frsize > leave:
            file.write(bytes(1 << 16))
            file.flush()


async def _try_append(client: ShardClient) -> errors.TopicsError | None:
    try:
        await client.append("t", "x" * 1000)
    except errors.TopicsError as error:
        return error
    return None
