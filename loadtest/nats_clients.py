"""NATS JetStream by nats-py. Its acks mean written, not synced: by default it syncs every two minutes."""

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from loadtest.http import Address
from loadtest.records import data
from loadtest.together import Ready, run_together
from loadtest.workload import Sample, WrongAnswer

FILL_BATCH = 1000
WAIT_S = 30.0


async def connect(address: Address) -> Any:
    import nats

    return await nats.connect(f"nats://{address[0]}:{address[1]}", allow_reconnect=False)


def make_stream(address: Address, name: str) -> None:
    async def make() -> None:
        connection = await connect(address)
        await connection.jetstream().add_stream(name=name, subjects=[name])
        await connection.close()

    asyncio.run(make())


def _held(address: Address, name: str) -> int:
    async def ask() -> int:
        connection = await connect(address)
        info = await connection.jetstream().stream_info(name)
        await connection.close()
        return int(info.state.messages)

    return asyncio.run(ask())


def append_by_nats_py(address: Address, name: str, producers: int, size: int, processes: int, seconds: float) -> Sample:
    """Producers as tasks; a batch is as many publishes under way at once."""
    make_stream(address, name)
    shares = [len(range(n, producers, processes)) for n in range(processes)]
    answers = run_together([partial(_append, address, name, share, size, seconds) for share in shares])
    acked, held = sum(written for (_, written), _ in answers), _held(address, name)
    if acked != held:
        raise WrongAnswer(f"NATS acked {acked} records and holds {held}")
    return Sample(sum(rate for (rate, _), _ in answers))


def _append(address: Address, name: str, producers: int, size: int, seconds: float, ready: Ready) -> tuple[float, int]:
    async def main() -> tuple[float, int]:
        connection = await connect(address)
        stream = connection.jetstream(timeout=WAIT_S)
        payload, count = data(0), 0
        ready()
        began = time.perf_counter()

        async def produce() -> None:
            nonlocal count
            while time.perf_counter() < began + seconds:
                if size == 1:
                    await stream.publish(name, payload)
                else:
                    await asyncio.gather(*[await stream.publish_async(name, payload) for _ in range(size)])
                count += size

        await asyncio.gather(*[produce() for _ in range(producers)])
        rate = count / (time.perf_counter() - began)
        await connection.close()
        return rate, count

    return asyncio.run(main())


def fill(address: Address, name: str, count: int) -> None:
    make_stream(address, name)

    async def publish() -> None:
        connection = await connect(address)
        stream = connection.jetstream(timeout=WAIT_S)
        for start in range(0, count, FILL_BATCH):
            numbers = range(start, min(start + FILL_BATCH, count))
            await asyncio.gather(*[await stream.publish_async(name, data(0, 0, number)) for number in numbers])
        await connection.close()

    asyncio.run(publish())


def read_by_nats_py(address: Address, names: Sequence[str], count: int, limit: int, seconds: float) -> Sample:
    """Each stream is read by its own process with a pull consumer that acks nothing, so many records a fetch."""
    answers = run_together([partial(_read, address, name, count, limit, seconds) for name in names])
    return Sample(sum(rate for rate, _ in answers))


def _read(address: Address, name: str, count: int, limit: int, seconds: float, ready: Ready) -> float:
    async def main() -> float:
        from nats.js.api import AckPolicy, ConsumerConfig

        connection = await connect(address)
        stream = connection.jetstream(timeout=WAIT_S)
        config = ConsumerConfig(ack_policy=AckPolicy.NONE)
        ready()
        began = time.perf_counter()
        read = 0
        while time.perf_counter() < began + seconds:
            consumer = await stream.pull_subscribe(name, config=config)
            seq = 0
            while seq < count and time.perf_counter() < began + seconds:
                messages = await consumer.fetch(min(limit, count - seq), timeout=WAIT_S)
                for message in messages:
                    seq += 1
                    if message.metadata.sequence.stream != seq:
                        raise WrongAnswer(f"NATS gave seq {message.metadata.sequence.stream} where {seq} should be")
                read += len(messages)
            await consumer.unsubscribe()
        rate = read / (time.perf_counter() - began)
        await connection.close()
        return rate

    return asyncio.run(main())
