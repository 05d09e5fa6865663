"""Clients that catch up: read a topic from its beginning, 1,000 records a call, again and again."""

import time
from collections.abc import Sequence
from functools import partial

import msgspec

from loadtest.http import Address, Connection
from loadtest.producers import READ_LIMIT, diff_request
from loadtest.together import Ready, run_together
from loadtest.workload import Sample, WrongAnswer

NEXT = b'"next_from_seq":'
TAIL_BYTES = 512  # what follows the records in an answer is shorter than this
FIRST = b'"records":[{"$seq":%d,'
DECODER = msgspec.json.Decoder()


def read_load(address: Address, topics: Sequence[str], count: int, seconds: float, *, decode: bool) -> Sample:
    """Each topic is read by a process of its own. `decode` turns every answer into Python objects."""
    answers = run_together([partial(_catch_up, address, topic, count, seconds, decode) for topic in topics])
    records = sum(read for (_, read), _ in answers)
    client_s = sum(spent for _, spent in answers)
    return Sample(sum(rate for (rate, _), _ in answers), {"client_us": client_s * 1e6 / max(records, 1)})


def _catch_up(
    address: Address, topic: str, count: int, seconds: float, decode: bool, ready: Ready
) -> tuple[float, int]:
    with Connection(address) as connection:
        ready()
        began = now = time.perf_counter()
        read = at = 0
        while now < began + seconds:
            body = connection.ask(diff_request(topic, at))
            after = _after_decoding(body, at) if decode else _after(body, at)
            if after != min(at + READ_LIMIT, count):
                raise WrongAnswer(f"{topic}: a diff from {at} went on to {after}")
            read += after - at
            at = after if after < count else 0
            now = time.perf_counter()
        return read / (now - began), read


def _after(body: memoryview, at: int) -> int:
    """The next cursor; the rest of the answer is only looked at where the first record begins."""
    if FIRST % (at + 1) not in bytes(body[:TAIL_BYTES]):
        raise WrongAnswer(f"a diff from {at} begins {bytes(body[:TAIL_BYTES])!r}")
    tail = bytes(body[-TAIL_BYTES:])
    start = tail.rindex(NEXT) + len(NEXT)
    return int(tail[start : tail.index(b",", start)])


def _after_decoding(body: memoryview, at: int) -> int:
    answer = DECODER.decode(body)
    records = answer["records"]
    if records[0]["$seq"] != at + 1 or records[-1]["$seq"] != answer["next_from_seq"]:
        raise WrongAnswer(f"a diff from {at} holds seqs {records[0]['$seq']} to {records[-1]['$seq']}")
    return int(answer["next_from_seq"])
