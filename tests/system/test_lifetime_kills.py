"""kill -9 of shards and gateways while records with a lifetime come and go: who is gone stays gone, the others stay."""

import random
import threading
from typing import Any

import pytest

from tests.system.client import Client
from topics.testing.server import wait_until

KILLS = 6
VICTIMS = (("shard", 0), ("shard", 0), ("gateway", 0))
LIFETIMES = (None, 1, 30, 200, 600, None, 3_600_000)


class Notes:
    """What everybody knows of everybody."""

    def __init__(self) -> None:
        self.over = False
        self.acked: dict[int, int | None] = {}  # seq → lifetime
        self.gone: set[int] = set()
        self.reads = 0
        self.failures: list[BaseException] = []


def write(server, seed: int, notes: Notes) -> None:
    chance = random.Random(seed)
    try:
        with Client(server) as client:
            while not notes.over:
                lifetimes = [chance.choice(LIFETIMES) for _ in range(chance.randint(1, 8))]
                answer = client.append("t", {"records": [_record(ttl) for ttl in lifetimes]})
                notes.acked |= dict(zip(answer["seqs"], lifetimes, strict=True))
    except BaseException as error:
        notes.failures.append(error)


def _record(ttl: int | None) -> dict[str, Any]:
    return {"data": ttl} | ({"ttl_ms": ttl} if ttl else {})


def watch(server, notes: Notes) -> None:
    """Read all of it, again and again."""
    try:
        with Client(server) as client:
            while not notes.over:
                known, gone = dict(notes.acked), set(notes.gone)  # before the read begins
                there = {record["$seq"] for record in read(client)}
                check(known, there, gone)
                notes.gone |= known.keys() - there
                notes.reads += 1
    except BaseException as error:
        notes.failures.append(error)


def check(acked: dict[int, int | None], there: set[int], gone: set[int]) -> None:
    assert not gone & there, f"{sorted(gone & there)} came back"
    lost = [seq for seq, ttl in acked.items() if (ttl is None or ttl > 600_000) and seq not in there]
    assert not lost, f"{lost} are gone, although their time is not over"


def read(client: Client) -> list[dict[str, Any]]:
    records: list[dict[str, Any]]
    records, lost = client.read_all("t")
    assert lost == []
    return records


@pytest.mark.slow
def test_who_is_gone_stays_gone_whoever_is_killed(serve):
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    server = serve(shards=1, gateways=1)
    chance = random.Random(seed)
    notes = Notes()
    with Client(server) as client:
        client.put("t", durability="fsync")
        threads = [threading.Thread(target=write, args=(server, seed + n, notes), daemon=True) for n in range(3)]
        threads += [threading.Thread(target=watch, args=(server, notes), daemon=True) for _ in range(2)]
        for thread in threads:
            thread.start()
        for victim in [*VICTIMS, *chance.choices(VICTIMS, k=KILLS - len(VICTIMS))]:
            seen, gone = notes.reads, len(notes.gone)
            wait_until(lambda: notes.failures or (notes.reads > seen and len(notes.gone) > gone), "some to expire")  # noqa: B023
            server.wait_back(*victim, server.kill(*victim))
        notes.over = True
        for thread in threads:
            thread.join(120)
        assert not notes.failures, notes.failures
        assert notes.gone

        def left() -> set[int]:
            records = read(client)
            check(notes.acked, {record["$seq"] for record in records}, notes.gone)
            return {record["$seq"] for record in records if record["data"] in (1, 30, 200, 600)}

        wait_until(lambda: not left(), "the rest to expire")
        before = read(client)
        assert server.stop() == 0  # a checkpoint has it now, and the log has not
        server.start().wait_ready()
        assert read(client) == before
