"""What API keys cost: appends of one record to a `disk` topic, with no key configured, and with 1, 10 and 1,000.

    python -m loadtest.keys --rounds 5 --seconds 2

Starts a server of its own for each number of keys, all at once, and measures one after another, round by round, so
that what else the machine does hits all alike. The client keeps its connections and sends the last key of the file; if
there are no keys, one that is not looked at. Prints a table of medians. The processor time of the gateway, where keys
are checked, is what a busy machine distorts least.
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from loadtest.http import measure, requests_for

COUNTS = (0, 1, 10, 1000)
START_S = 60.0


@contextmanager
def server(folder: Path, keys: list[str]) -> Iterator[tuple[tuple[str, int], int]]:
    """`topics serve` with these keys, on a free port; its address, and the pid of its gateway."""
    folder.mkdir()
    port_file, key_file = folder / "port", folder / "keys"
    env = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
    env |= {"TOPICS_PORT": "0", "TOPICS_PORT_FILE": str(port_file), "TOPICS_DATA_DIR": str(folder / "data")}
    env |= {"TOPICS_SHARDS": "1", "TOPICS_GATEWAYS": "1", "TOPICS_LOG_LEVEL": "error"}
    if keys:
        key_file.touch(mode=0o600)
        key_file.write_text("".join(f"{key}\n" for key in keys))
        env["TOPICS_API_KEYS_FILE"] = str(key_file)
    process = subprocess.Popen([sys.executable, "-m", "topics.cli", "serve"], env=env)
    try:
        until = time.monotonic() + START_S
        while not port_file.exists():
            if process.poll() is not None or time.monotonic() > until:
                raise SystemExit("the server did not start")
            time.sleep(0.02)
        host, _, port = port_file.read_text().rpartition(":")
        yield (host, int(port)), gateway_of(process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def gateway_of(supervisor: int) -> int:
    children = [pid for of in Path(f"/proc/{supervisor}/task").glob("*/children") for pid in of.read_text().split()]
    return next(int(pid) for pid in children if b"topics.gateway" in Path(f"/proc/{pid}/cmdline").read_bytes())


def processor_us(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") * 1e6


def request_with(key: str) -> bytes:
    request = requests_for("append", "x", "load", 1)
    return request.replace(b"\r\n", f"\r\nauthorization: Bearer {key}\r\n".encode(), 1)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtest.keys", description="Measure what API keys cost.")
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=2.0, help="of one measurement")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args(argv)
    rates: dict[int, list[float]] = {count: [] for count in COUNTS}
    costs: dict[int, list[float]] = {count: [] for count in COUNTS}
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as stack:
        targets = {}
        for count in COUNTS:
            keys = [f"key-{n}-{os.urandom(16).hex()}" for n in range(count)]
            address, gateway = stack.enter_context(server(Path(temporary) / str(count), keys))
            targets[count] = address, gateway, request_with((keys or ["key-0-" + "0" * 32])[-1])
        for number in range(args.rounds + 1):
            for count, (address, gateway, request) in targets.items():
                before = processor_us(gateway)
                result = measure(address, request, args.connections, args.seconds)
                if number:  # the first round warms up
                    rates[count].append(result["requests_per_s"])
                    costs[count].append((processor_us(gateway) - before) / result["requests_per_s"] / args.seconds)
    print("| keys | requests/s | µs of the gateway's processor per request |")
    print("|---|---|---|")
    for count in COUNTS:
        print(f"| {count:,} | {statistics.median(rates[count]):,.0f} | {statistics.median(costs[count]):.1f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
