"""`python -m loadtest.compression`: what compression at rest saves on disk, and what it costs a shard.

A shard process of its own for each way and each round, in turn. Costs are processor time of that process, which a busy
machine disturbs less than the time that passes; the least of the rounds counts. Every record is read back and checked.
"""

import argparse
import base64
import random
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import trio

from topics.testing.shard_process import ShardClient, ShardProcess

WAYS = ("none", "gzip", "zstd")
BATCH = 1000
FEW = 10  # records of a small read
PASSES = 5  # over everything: processor time is counted in hundredths of a second
AGENTS = ("Mozilla/5.0 (X11; Linux x86_64)", "Mozilla/5.0 (iPhone; CPU iPhone OS 19_0)", "curl/8.14.1", "okhttp/5.1.0")


def event(rng: random.Random, number: int) -> dict[str, Any]:
    """Much like others of its kind, as events are."""
    return {
        "id": f"{rng.getrandbits(64):016x}",
        "type": rng.choice(("view", "click", "purchase", "refund")),
        "user": rng.randrange(1_000_000),
        "path": f"/shop/{rng.choice(('shoes', 'hats', 'books'))}/{rng.randrange(10_000)}",
        "agent": rng.choice(AGENTS),
        "price": round(rng.random() * 100, 2),
        "n": number,
    }


def opaque(rng: random.Random, number: int) -> dict[str, Any]:
    """The worst that JSON can hold: only base64 and what the server adds can be saved."""
    return {"n": number, "blob": base64.b64encode(rng.randbytes(150)).decode()}


KINDS: dict[str, Callable[[random.Random, int], dict[str, Any]]] = {"events": event, "opaque": opaque}


@dataclass(frozen=True, slots=True)
class Cost:
    """Bytes on disk and microseconds of the shard's processor time, each for one record."""

    disk: float
    write: float
    read: float
    read_few: float


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m loadtest.compression", description=__doc__)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3, help="the least of them counts")
    arguments = parser.parse_args()
    for line in table(arguments.records, arguments.rounds):
        print(line, flush=True)


def table(records: int, rounds: int) -> list[str]:
    lines = [
        "| records | compression | disk, bytes | of plain | write, µs | read by 1,000, µs | read by 10, µs |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for kind, make in KINDS.items():
        rng = random.Random(1)
        payloads = [make(rng, number) for number in range(records)]
        found: dict[str, list[Cost]] = {way: [] for way in WAYS}
        for _ in range(rounds):
            for way in WAYS:
                found[way].append(trio.run(measure, payloads, way))
        plain = least(found["none"])
        lines += [row(kind, way, least(costs), plain) for way, costs in found.items()]
    return lines


def least(costs: list[Cost]) -> Cost:
    return Cost(*(min(values) for values in zip(*((c.disk, c.write, c.read, c.read_few) for c in costs), strict=True)))


def row(kind: str, way: str, cost: Cost, plain: Cost) -> str:
    share = f"{cost.disk / plain.disk:.0%}"
    return f"| {kind} | {way} | {cost.disk:.0f} | {share} | {cost.write:.2f} | {cost.read:.2f} | {cost.read_few:.1f} |"


async def measure(payloads: list[dict[str, Any]], way: str) -> Cost:
    folder = Path(tempfile.mkdtemp(prefix="bench-compression-"))
    shard = ShardProcess(folder / "shard", watched=False)
    try:
        shard.start(stderr=subprocess.DEVNULL)
        async with shard.connected() as client:
            await client.put("t", durability="disk", compression=way)
            before = shard.processor_s()
            for low in range(0, len(payloads), BATCH):
                await client.append("t", *payloads[low : low + BATCH])
            await client.call("checkpoint")
            write = shard.processor_s() - before
        shard.stop()
        disk = sum(path.stat().st_size for path in shard.directory.rglob("*.data"))
        shard.start(stderr=subprocess.DEVNULL)  # nothing is resident now
        async with shard.connected() as client:
            await read(client, payloads, BATCH)  # once, so that the page cache has it
            before = shard.processor_s()
            for _ in range(PASSES):
                await read(client, payloads, BATCH)
            middle = shard.processor_s()
            few = payloads[: max(FEW, len(payloads) // 10)]
            await read(client, few, FEW)
            end = shard.processor_s()
        count = len(payloads)
        costs = (write / count, (middle - before) / (PASSES * count), (end - middle) / len(few))
        return Cost(disk / count, *(1e6 * seconds for seconds in costs))
    finally:
        shard.clean_up()
        shutil.rmtree(folder, ignore_errors=True)


async def read(client: ShardClient, payloads: list[dict[str, Any]], limit: int) -> None:
    """The first so many records, and that they are what was written."""
    at = 0
    while at < len(payloads):
        reply = await client.connection.call("diff", {"topic": "t"}, b'{"from_seq":%d,"limit":%d}' % (at, limit))
        records = msgspec.json.decode(bytes(reply.body) + b"}")["records"]
        if [record["data"] for record in records] != payloads[at : at + len(records)] or not records:
            raise SystemExit(f"what was read behind seq {at} is not what was written")
        at += len(records)


if __name__ == "__main__":
    main()
