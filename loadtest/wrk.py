"""Appends by wrk, a client in C that costs next to nothing."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

from loadtest.http import Address, Connection
from loadtest.producers import pages
from loadtest.records import data
from loadtest.tools import find_program
from loadtest.workload import Sample, WrongAnswer

SCRIPT = """
local names, at, requests = {%(names)s}, 0, {}
function init()
  for i, name in ipairs(names) do
    local path = "/v0/topics/" .. name .. "?return_seqs=false"
    requests[i] = wrk.format("POST", path, {["content-type"] = "application/json"}, %(body)s)
  end
end
function request()
  at = at %% #requests + 1
  return requests[at]
end
function done(summary, latency)
  local e = summary.errors
  io.write(string.format('{"requests":%%d,"us":%%d,"bad":%%d,"p50":%%.3f,"p99":%%.3f}\\n', summary.requests,
    summary.duration, e.connect + e.read + e.write + e.status + e.timeout,
    latency:percentile(50) / 1000, latency:percentile(99) / 1000))
end
"""


def append_by_wrk(folder: Path, address: Address, topics: Sequence[str], connections: int, seconds: float) -> Sample:
    """wrk cuts its last requests off, so the topics may hold a few records more than it counted, and not one less."""
    payload = data(0)
    body = b'{"records":[{"data":%b}]}' % payload
    script = folder / "append.lua"
    names = ",".join(f'"{topic}"' for topic in topics)
    script.write_text(SCRIPT % {"names": names, "body": "[[" + body.decode() + "]]"})
    url = f"http://{address[0]}:{address[1]}"
    command = [
        find_program("wrk") or "wrk",
        "-t2",
        f"-c{connections}",
        f"-d{max(1, round(seconds))}s",
        "-s",
        str(script),
        url,
    ]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    seen = json.loads(text.splitlines()[-1])
    if seen["bad"]:
        raise WrongAnswer(f"wrk counted {seen['bad']} failed requests:\n{text}")
    held = _count(address, topics, payload)
    if not seen["requests"] <= held <= seen["requests"] + connections:
        raise WrongAnswer(f"wrk counted {seen['requests']} answers, the topics hold {held} records")
    return Sample(seen["requests"] / seen["us"] * 1e6, {"p50": seen["p50"], "p99": seen["p99"]})


def _count(address: Address, topics: Sequence[str], payload: bytes) -> int:
    held = 0
    with Connection(address) as connection:
        for topic in topics:
            seq = 0
            for page in pages(connection, topic):
                for record in page.records:
                    seq += 1
                    if record.seq != seq or bytes(record.data) != payload:
                        raise WrongAnswer(f"{topic}: seq {record.seq} where {seq} should be, or another payload")
            held += seq
    return held
