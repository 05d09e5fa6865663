"""beanstalkd as a peer: jobs in and out of one tube, by sockets without a client library in between."""

import re
import select
import socket
import time
from collections.abc import Sequence
from functools import partial

from loadtest.http import Address
from loadtest.records import data
from loadtest.together import Ready, run_together
from loadtest.workload import WrongAnswer

FILL_BATCH = 500
RESERVED = re.compile(rb"RESERVED (\d+) (\d+)\r\n")
NOTHING, DELETED = b"TIMED_OUT\r\n", b"DELETED\r\n"
Done = tuple[float, float, int]


def fill(address: Address, tube: str, count: int) -> None:
    payload = data(0)
    job = b"put 0 0 600 %d\r\n%b\r\n" % (len(payload), payload)
    with socket.create_connection(address) as sock, sock.makefile("rb") as answers:
        sock.sendall(b"use %b\r\n" % tube.encode())
        _expect(answers.readline(), b"USING ")
        for begin in range(0, count, FILL_BATCH):
            size = min(FILL_BATCH, count - begin)
            sock.sendall(job * size)
            for _ in range(size):
                _expect(answers.readline(), b"INSERTED ")


def _expect(line: bytes, start: bytes) -> None:
    if not line.startswith(start):
        raise WrongAnswer(f"beanstalkd answered {line!r}")


def drain(address: Address, tube: str, count: int, workers: int, size: int, processes: int) -> float:
    """Jobs a second: `size` are reserved in one go, then deleted in one go, until there are none."""
    shares = [list(range(workers))[n::processes] for n in range(processes)]
    answers = run_together([partial(_work, address, tube, share, size) for share in shares])
    done = sum(jobs for (_, _, jobs), _ in answers)
    if done != count:
        raise WrongAnswer(f"beanstalkd had {count} jobs, {done} were done")
    return done / (max(end for (_, end, _), _ in answers) - min(start for (start, _, _), _ in answers))


class Worker:
    """One connection: it waits for the answers to its reserves, or to its deletes."""

    def __init__(self, address: Address, tube: str, size: int) -> None:
        self.sock = socket.create_connection(address)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.done = 0
        self._size = size
        self._buffer = b""
        self._held: list[bytes] = []
        self.sock.sendall(b"watch %b\r\nignore default\r\n" % tube.encode())
        while self._buffer.count(b"\r\n") < 2:
            self._buffer += self.sock.recv(4096)
        self._buffer = b""

    def reserve(self) -> None:
        self.sock.sendall(b"reserve-with-timeout 0\r\n" * self._size)

    def go_on(self) -> bool:
        """Read once, and send what comes next when all answers are there; False at the end of the tube."""
        self._buffer += self.sock.recv(1 << 20)
        if self._held:
            if len(self._buffer) < len(DELETED) * len(self._held):
                return True
            if self._buffer != DELETED * len(self._held):
                raise WrongAnswer(f"beanstalkd answered deletes with {self._buffer[:200]!r}")
            self.done += len(self._held)
            self._buffer, self._held = b"", []
            self.reserve()
            return True
        found, answers = self._reserved()
        if answers < self._size:
            return True
        self._buffer, self._held = b"", found
        self.sock.sendall(b"".join([b"delete %b\r\n" % job for job in found]))
        return bool(found)

    def _reserved(self) -> tuple[list[bytes], int]:
        """The jobs, and how many answers are complete."""
        jobs, at, answers = [], 0, 0
        while at < len(self._buffer):
            if self._buffer.startswith(NOTHING, at):
                at += len(NOTHING)
            else:
                head = RESERVED.match(self._buffer, at)
                if head is None or len(self._buffer) < head.end() + int(head[2]) + 2:
                    break
                jobs.append(head[1])
                at = head.end() + int(head[2]) + 2
            answers += 1
        return jobs, answers


def _work(address: Address, tube: str, workers: Sequence[int], size: int, ready: Ready) -> Done:
    poll = select.epoll()
    waiting: dict[int, Worker] = {}
    done = 0
    for _ in workers:
        worker = Worker(address, tube, size)
        waiting[worker.sock.fileno()] = worker
        poll.register(worker.sock, select.EPOLLIN)
    ready()
    began = time.perf_counter()
    for worker in waiting.values():
        worker.reserve()
    while waiting:
        for number, _ in poll.poll():
            worker = waiting[number]
            if not worker.go_on():
                done += worker.done
                poll.unregister(number)
                del waiting[number]
                worker.sock.close()
    return began, time.perf_counter(), done
