"""Clients that append, and the check that everything acked can be read back as it was sent.

Closed loop: every producer sends its next write when the last one is acked; says how much a server takes. Open loop:
writes are due at a constant rate, and an answer counts from the moment its write was due, so a stall cannot hide.
"""

import contextlib
import ctypes
import math
import os
import select
import sys
import time
from array import array
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import msgspec

from loadtest.http import Address, Connection, number_after, post
from loadtest.records import Write, batch, data
from loadtest.stats import latency_ms
from loadtest.together import Ready, run_together
from loadtest.workload import WrongAnswer

FIRST_SEQ = b'"first_seq":'
READ_LIMIT = 1000
FILL_BATCH = 1000


@dataclass(slots=True)
class Ledger:
    """What was acked to one producer: the first seq of its write 0, 1, 2 …"""

    write: Write
    firsts: "array[int]" = field(default_factory=lambda: array("Q"))


@dataclass(slots=True)
class Load:
    """What producers did: acked writes, and what the clients saw."""

    ledgers: list[Ledger]
    rate: float  # records a second
    latencies: list[float]
    client_s: float = 0.0
    lateness: list[float] = field(default_factory=list)  # of open-loop sends against their plan

    @property
    def records(self) -> int:
        return sum(len(ledger.firsts) * ledger.write.size for ledger in self.ledgers)

    def details(self) -> dict[str, float]:
        return {**latency_ms(self.latencies), "client_us": self.client_s * 1e6 / max(self.records, 1)}


def writes_for(topics: Sequence[str], producers: int, size: int, durability: str = "") -> list[Write]:
    """Producers over topics: with fewer topics than producers they share, with more each has several."""
    if len(topics) <= producers:
        return [Write([topics[n % len(topics)]], n, size, durability=durability) for n in range(producers)]
    return [Write(list(topics[n::producers]), n, size, durability=durability) for n in range(producers)]


# --- closed loop --------------------------------------------------------------------------------------------------


def append_load(
    address: Address, writes: Sequence[Write], processes: int, seconds: float = math.inf, each: int = sys.maxsize
) -> Load:
    """For so long, or until each producer has sent so many writes."""
    shares = [list(writes[n::processes]) for n in range(min(processes, len(writes)))]
    works = [partial(_closed_loop, address, share, seconds, each) for share in shares]
    return _joined(run_together(works))


def _joined(answers: Sequence[tuple[Load, float]]) -> Load:
    loads = [load for load, _ in answers]
    return Load(
        [ledger for load in loads for ledger in load.ledgers],
        sum(load.rate for load in loads),
        [latency for load in loads for latency in load.latencies],
        sum(seconds for _, seconds in answers),
        [late for load in loads for late in load.lateness],
    )


def _closed_loop(address: Address, writes: list[Write], seconds: float, each: int, ready: Ready) -> Load:
    clients = {}
    poll = select.epoll()
    for write in writes:
        connection = Connection(address)
        clients[connection.sock.fileno()] = (connection, Ledger(write))
        poll.register(connection.sock.fileno(), select.EPOLLIN)
    ready()
    sent_at = {}
    began = time.perf_counter()
    until = began + seconds
    for fd, (connection, ledger) in clients.items():
        sent_at[fd] = time.perf_counter()
        connection.send(ledger.write.render(0))
    latencies = []
    now, left = began, len(clients)
    while left:
        for fd, _ in poll.poll():
            connection, ledger = clients[fd]
            body = connection.receive()
            if body is None:
                continue
            now = time.perf_counter()
            latencies.append(now - sent_at[fd])
            ledger.firsts.append(number_after(FIRST_SEQ, body))
            if now < until and len(ledger.firsts) < each:
                sent_at[fd] = now
                connection.send(ledger.write.render(len(ledger.firsts)))
            else:
                left -= 1
    load = Load([ledger for _, ledger in clients.values()], 0.0, latencies)
    load.rate = load.records / (now - began)
    return load


# --- open loop ----------------------------------------------------------------------------------------------------


def paced_loads(address: Address, groups: Sequence[Sequence[Write]], rate: float, seconds: float) -> list[Load]:
    """For each group a process: writes due at a constant rate, each by the next of its connections that is free."""
    answers = run_together([partial(_open_loop, address, list(group), rate, seconds) for group in groups])
    return [_joined([answer]) for answer in answers]


def paced_load(address: Address, writes: Sequence[Write], rate: float, seconds: float) -> Load:
    [load] = paced_loads(address, [writes], rate, seconds)
    return load


def _open_loop(address: Address, writes: list[Write], rate: float, seconds: float, ready: Ready) -> Load:
    run_punctually()
    connections = [Connection(address) for _ in writes]
    ledgers = [Ledger(write) for write in writes]
    by_fd = {connection.sock.fileno(): n for n, connection in enumerate(connections)}
    free, busy = list(reversed(range(len(writes)))), dict[int, float]()  # busy: fd → when its write was due
    latencies, lateness = [], []
    total, sent = int(rate * seconds), 0
    ready()
    began = time.perf_counter()
    while sent < total or busy:
        due = began + sent / rate
        now = time.perf_counter()
        if sent < total and free and now >= due:
            n = free.pop()
            busy[connections[n].sock.fileno()] = due
            lateness.append(now - due)
            connections[n].send(ledgers[n].write.render(len(ledgers[n].firsts)))
            sent += 1
            continue
        wait = max(0.0, due - now) if sent < total and free else None
        for fd in select.select(list(busy), [], [], wait)[0]:
            n = by_fd[fd]
            body = connections[n].receive()
            if body is not None:
                latencies.append(time.perf_counter() - busy.pop(fd))
                ledgers[n].firsts.append(number_after(FIRST_SEQ, body))
                free.append(n)
    return Load(ledgers, total / (time.perf_counter() - began), latencies, lateness=lateness)


def run_punctually() -> None:
    """Keep what this process itself is late by out of what it measures, as far as the system lets it.

    It comes before others when it is due, which is seldom and short, and its waits are not rounded up by 50 µs. How
    late it was all the same is part of the result.
    """
    pr_set_timerslack = 29
    ctypes.CDLL(None).prctl(pr_set_timerslack, 1, 0, 0, 0)
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))


# --- the check ----------------------------------------------------------------------------------------------------


class Stored(msgspec.Struct):
    seq: int = msgspec.field(name="$seq")
    data: msgspec.Raw = msgspec.Raw(b"")


class Page(msgspec.Struct):
    records: list[Stored]
    next_from_seq: int
    caught_up: bool
    tombstone: msgspec.Raw = msgspec.Raw(b"null")


PAGE = msgspec.json.Decoder(Page)


def diff_request(topic: str, from_seq: int, limit: int = READ_LIMIT, key: str = "") -> bytes:
    return post(f"/v0/topics/{topic}/diff", b'{"from_seq":%d,"limit":%d}' % (from_seq, limit), key=key)


def pages(connection: Connection, topic: str, key: str = "") -> Iterator[Page]:
    """A topic from its beginning to its end."""
    from_seq, caught_up = 0, False
    while not caught_up:
        page = PAGE.decode(connection.ask(diff_request(topic, from_seq, key=key)))
        if bytes(page.tombstone) != b"null":
            raise WrongAnswer(f"{topic}: a tombstone after seq {from_seq}: {bytes(page.tombstone).decode()}")
        if page.next_from_seq <= from_seq and not page.caught_up:
            raise WrongAnswer(f"{topic}: the cursor stands still at {from_seq}")
        from_seq, caught_up = page.next_from_seq, page.caught_up
        yield page


def check(address: Address, ledgers: Sequence[Ledger], topics: Sequence[str] | None = None, key: str = "") -> None:
    """Read every acked record back: each seq once, in order, with the payload that was sent. Raises WrongAnswer.

    The topics must hold nothing else. `topics` limits the check to some of them.
    """
    written: defaultdict[str, dict[int, tuple[Write, int]]] = defaultdict(dict)
    for ledger in ledgers:
        for number, first in enumerate(ledger.firsts):
            of = written[ledger.write.topic_of(number)]
            if first in of:
                raise WrongAnswer(f"{ledger.write.topic_of(number)}: seq {first} was given to two writes")
            of[first] = (ledger.write, number)
    with Connection(address) as connection:
        for topic in topics if topics is not None else written:
            _check_topic(pages(connection, topic, key), topic, written[topic])


def _check_topic(found: Iterator[Page], topic: str, written: dict[int, tuple[Write, int]]) -> None:
    expected = _payloads(topic, written)
    seq = 0
    for page in found:
        for record in page.records:
            seq += 1
            if record.seq != seq:
                raise WrongAnswer(f"{topic}: seq {record.seq} where {seq} should be")
            sent = next(expected, None)
            if sent is None:
                raise WrongAnswer(f"{topic}: seq {seq} was never acked")
            if bytes(record.data) != sent:
                raise WrongAnswer(f"{topic}: seq {seq} holds {bytes(record.data)!r}, sent was {sent!r}")
    if next(expected, None) is not None:
        raise WrongAnswer(f"{topic}: acked records behind seq {seq} are missing")


def _payloads(topic: str, written: dict[int, tuple[Write, int]]) -> Iterator[bytes]:
    """What was sent, in the order of the acked seqs, which must leave no gap."""
    rendered: dict[tuple[int, int], list[bytes]] = {}
    next_seq = 1
    for first in sorted(written):
        write, number = written[first]
        if first != next_seq:
            raise WrongAnswer(f"{topic}: acked seqs go from {next_seq - 1} to {first}")
        next_seq += write.size
        yield data(write.producer, 0, number)
        if write.size > 1:
            known = (write.producer, write.size)
            if known not in rendered:
                rendered[known] = batch(*known)[1:]
            yield from rendered[known]


# --- filling ------------------------------------------------------------------------------------------------------


def fill(address: Address, topics: Sequence[str], count: int) -> None:
    """Append so many records to each topic, a multiple of FILL_BATCH, and read them back."""
    writes = [Write([topic], producer, FILL_BATCH) for producer, topic in enumerate(topics)]
    check(address, append_load(address, writes, 1, each=count // FILL_BATCH).ledgers)
