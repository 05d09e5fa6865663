"""Round trips per second and body throughput of topics.rpc between two processes: `python -m loadtest.rpc`."""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import trio

from topics.rpc import Call, Connection, connect_unix, serve_unix

IN_FLIGHT = (1, 16, 64, 256, 1024)
MIB = 1024 * 1024


def echo(call: Call) -> None:
    call.reply({"seq": 1}, call.body)


def blob(call: Call) -> None:
    call.reply({}, bytes(call.head["size"]))


async def feed(call: Call) -> None:
    for seq in range(call.head["count"]):
        await call.send({"seq": seq}, call.body)
    call.reply({})


HANDLERS = {"echo": echo, "blob": blob, "feed": lambda call: call.run(feed, call)}


async def round_trips(connection: Connection, in_flight: int, seconds: float, deadline_ms: int | None) -> float:
    stop_at = time.perf_counter() + seconds
    done = 0

    async def caller() -> None:
        nonlocal done
        while time.perf_counter() < stop_at:
            await connection.call("echo", {"topic": "events"}, b"x" * 32, deadline_ms=deadline_ms)
            done += 1

    started = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for _ in range(in_flight):
            nursery.start_soon(caller)
    return done / (time.perf_counter() - started)


async def body_rate(connection: Connection, method: str, count: int) -> float:
    """MiB/s of 8 MiB bodies, there or back."""
    size = 8 * MIB
    started = time.perf_counter()
    for _ in range(count):
        if method == "there":
            await connection.call("blob", {"size": 0}, bytes(size))
        else:
            await connection.call("blob", {"size": size})
    return count * size / MIB / (time.perf_counter() - started)


async def stream_rate(connection: Connection, count: int) -> float:
    started = time.perf_counter()
    async with connection.stream("feed", {"count": count}, b"x" * 256, credits=256) as stream:
        async for _ in stream:
            pass
    return count / (time.perf_counter() - started)


async def measure(path: str, seconds: float) -> None:
    async with trio.open_nursery() as nursery:
        connection = await connect_unix(path, nursery)
        for in_flight in IN_FLIGHT:
            rates = sorted([await round_trips(connection, in_flight, seconds, None) for _ in range(3)])
            print(f"round trips, {in_flight:5} in flight        {rates[1]:12,.0f} /s")
        print(f"round trips,    64, with a deadline  {await round_trips(connection, 64, seconds, 5000):12,.0f} /s")
        print(f"8 MiB bodies there                   {await body_rate(connection, 'there', 40):12,.0f} MiB/s")
        print(f"8 MiB bodies back                    {await body_rate(connection, 'back', 40):12,.0f} MiB/s")
        print(f"stream of 256-byte messages          {await stream_rate(connection, 200_000):12,.0f} /s")
        await connection.aclose()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.0, help="per round-trip measurement; medians of three")
    parser.add_argument("--serve", metavar="SOCKET", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        trio.run(serve_unix, args.serve, HANDLERS)
        return
    with tempfile.TemporaryDirectory() as directory:
        path = str(Path(directory) / "rpc.sock")
        server = subprocess.Popen([sys.executable, "-m", "loadtest.rpc", "--serve", path])
        try:
            while not Path(path).exists():
                time.sleep(0.01)
            time.sleep(0.1)
            trio.run(measure, path, args.seconds)
        finally:
            server.kill()
            server.wait()


if __name__ == "__main__":
    main()
