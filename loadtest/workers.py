"""Workers of a queue: claim, ack, again and again, until there is nothing left. Every job must be had exactly once."""

import json
import re
import select
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from loadtest.http import Address, Connection, post
from loadtest.redis_clients import client
from loadtest.together import Ready, run_together
from loadtest.workload import WrongAnswer

CLAIMED = re.compile(rb'\{"\$seq":(\d+),')
GROUP = "workers"
Done = tuple[float, float, list[tuple[int, int]]]  # when it began and ended; its jobs, by queue and seq


def drain(address: Address, queues: Sequence[str], count: int, workers: int, size: int, processes: int) -> float:
    """Jobs a second of workers that share some queues with `count` jobs each; `size` are claimed at once."""
    shares = [list(range(workers))[n::processes] for n in range(processes)]
    answers = run_together([partial(_work, address, queues, share, size) for share in shares])
    done = sorted(job for (_, _, jobs), _ in answers for job in jobs)
    if done != [(queue, seq) for queue in range(len(queues)) for seq in range(1, count + 1)]:
        raise WrongAnswer(f"{len(set(done))} of {count * len(queues)} jobs were done, {len(done)} times in all")
    return len(done) / (max(end for (_, end, _), _ in answers) - min(start for (start, _, _), _ in answers))


def _work(address: Address, queues: Sequence[str], workers: Sequence[int], size: int, ready: Ready) -> Done:
    """Several workers in one process, each with a connection and one request under way."""
    poll = select.epoll()
    waiting: dict[int, tuple[Connection, int, list[int]]] = {}
    jobs: list[tuple[int, int]] = []
    for worker in workers:
        connection = Connection(address)
        waiting[connection.sock.fileno()] = (connection, worker, [])
        poll.register(connection.sock, select.EPOLLIN)
    ready()
    began = time.perf_counter()
    for connection, worker, _ in waiting.values():
        connection.send(_claim(queues[worker % len(queues)], worker, size))
    while waiting:
        for number, _ in poll.poll():
            connection, worker, held = waiting[number]
            body = connection.receive()
            if body is None:
                continue
            place = worker % len(queues)
            queue, answer = queues[place], bytes(body)
            if held:
                if b'"acked":%d,' % len(held) not in answer:
                    raise WrongAnswer(f"an ack of {len(held)} jobs was answered {answer!r}")
                jobs += [(place, seq) for seq in held]
                waiting[number] = (connection, worker, [])
                connection.send(_claim(queue, worker, size))
                continue
            seqs = [int(seq) for seq in CLAIMED.findall(answer)]
            if not seqs:
                poll.unregister(number)
                del waiting[number]
                connection.sock.close()
                continue
            waiting[number] = (connection, worker, seqs)
            connection.send(_ack(queue, worker, seqs))
    return began, time.perf_counter(), jobs


def _claim(queue: str, worker: int, size: int) -> bytes:
    return post(f"/v0/topics/{queue}/claim", b'{"node":"w%d","max":%d,"lease_ms":600000}' % (worker, size))


def _ack(queue: str, worker: int, seqs: Sequence[int]) -> bytes:
    return post(f"/v0/topics/{queue}/ack", b'{"node":"w%d","seqs":%b}' % (worker, json.dumps(list(seqs)).encode()))


# --- Redis Streams groups -----------------------------------------------------------------------------------------


def drain_redis(address: Address, stream: str, count: int, workers: int, size: int, processes: int) -> float:
    """The same with a consumer group, by redis-py: read what is new, ack and delete it."""
    with client(address) as one:
        one.xgroup_create(stream, GROUP, id="0")
    shares = [list(range(workers))[n::processes] for n in range(processes)]
    answers = run_together([partial(_work_redis, address, stream, share, size) for share in shares])
    done = sum(jobs for (_, _, jobs), _ in answers)
    with client(address) as one:
        if done != count or one.xlen(stream):
            raise WrongAnswer(f"Redis had {count} jobs, {done} were done")
    return done / (max(end for (_, end, _), _ in answers) - min(start for (start, _, _), _ in answers))


def _work_redis(
    address: Address, stream: str, workers: Sequence[int], size: int, ready: Ready
) -> tuple[float, float, int]:
    clients: list[Any] = [client(address) for _ in workers]
    for one in clients:
        one.ping()
    counts = [0] * len(clients)

    def work(n: int) -> None:
        one, name = clients[n], f"w{workers[n]}"
        while found := one.xreadgroup(GROUP, name, {stream: ">"}, count=size):
            ids = [entry for entry, _ in found[0][1]]
            pipeline = one.pipeline(transaction=False)
            pipeline.xack(stream, GROUP, *ids)
            pipeline.xdel(stream, *ids)
            pipeline.execute()
            counts[n] += len(ids)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(len(clients))]
    ready()
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return began, time.perf_counter(), sum(counts)
