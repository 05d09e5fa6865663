"""Bad clients on the real port, over both gateways, while a good one is served all the time.

What each kind of bytes is answered is tested in tests/gateway; here nothing may hang, break or starve.
"""

import random
import re
import socket
import time

import pytest

from tests.system.client import Client, Crew
from topics.testing.server import DEADLINE_S

BODY = b'{"records":[{"data":1.50}]}'
REST = b" HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
APPEND = b"POST /v0/topics/fuzzed%bContent-Length: %d\r\n\r\n%b" % (REST, len(BODY), BODY)
CHUNKS = b"7\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (BODY[:7], len(BODY) - 7, BODY[7:])
CHUNKED = b"POST /v0/topics/fuzzed%bTransfer-Encoding: chunked\r\n\r\n%b" % (REST, CHUNKS)
DIFF = b"POST /v0/topics/fuzzed/diff%bContent-Length: 2\r\n\r\n{}" % REST
STATE = b"GET /v0/topics/fuzzed HTTP/1.1\r\nHost: x\r\n\r\n"
HEALTH = b"GET /v0/health HTTP/1.1\r\nHost: x\r\n\r\n"
LAST = b"GET /v0/health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
GOOD = (APPEND, CHUNKED, DIFF, STATE, HEALTH)


class Bad:
    """Ways to be a bad client. Each returns what came back, read to the end."""

    def __init__(self, server, dice) -> None:
        self.server = server
        self.dice = dice

    def split_packets(self):
        data = self.dice.choice(GOOD) + LAST
        cuts = sorted(self.dice.randrange(len(data)) for _ in range(self.dice.randrange(1, 30)))
        parts = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
        answers = self._exchange(parts)
        assert statuses(answers)[-1:] == [200], answers[-300:]
        assert len(statuses(answers)) == 2, answers[-300:]

    def pipelining(self):
        requests = self.dice.choices(GOOD, k=self.dice.randrange(2, 60))
        answers = self._exchange([b"".join(requests) + LAST])
        found = statuses(answers)
        assert len(found) == len(requests) + 1, (len(found), len(requests))
        assert set(found) <= {200, 201}, found

    def garbage(self):
        answers = self._exchange([self.dice.randbytes(self.dice.randrange(1, 5000))], half_close=True)
        assert set(statuses(answers)) <= {400, 414, 431, 505}, answers[:300]

    def flipped_bytes(self):
        data = bytearray(b"".join(self.dice.choices(GOOD, k=3)) + LAST)
        for _ in range(self.dice.randrange(1, 6)):
            data[self.dice.randrange(len(data))] = self.dice.randrange(256)
        answers = self._exchange([bytes(data)], half_close=True)
        assert 500 not in statuses(answers), (bytes(data), answers)

    def gone_in_the_middle(self):
        data = self.dice.choice(GOOD)
        sock = self._connect()
        sock.sendall(data[: self.dice.randrange(len(data))])
        if self.dice.random() < 0.5:  # a reset instead of an orderly end
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        sock.close()

    def deaf(self):
        """Asks a lot and leaves without reading a byte."""
        with self._connect() as sock:
            sock.sendall(b"".join(self.dice.choices(GOOD, k=50)))

    def http2_garbage(self):
        preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        self._exchange([preface + self.dice.randbytes(self.dice.randrange(200))], half_close=True)

    def _connect(self):
        return socket.create_connection(("127.0.0.1", self.server.port), timeout=DEADLINE_S)

    def _exchange(self, parts, half_close=False) -> bytes:
        """Send the parts, as packets of their own, and read to the end; a hang is a failure."""
        got = b""
        with self._connect() as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                for part in parts:
                    sock.sendall(part)
                if half_close:
                    sock.shutdown(socket.SHUT_WR)
                while data := sock.recv(65536):
                    got += data
            except ConnectionError:  # it was refused and closed while we were still sending
                assert half_close, "a good request was reset"
        return got


def statuses(answers: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", answers)]


WAYS = [name for name in vars(Bad) if not name.startswith("_")]


@pytest.mark.slow
def test_bad_clients_do_not_disturb_good_ones(serve):
    seed = random.randrange(1 << 32)
    print("seed", seed)
    server, crew = serve(gateways=2), Crew()
    half_open = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(50)]
    for n, sock in enumerate(half_open):
        sock.sendall(APPEND[: n * len(APPEND) // 50])  # and never more
    counts = dict.fromkeys(WAYS, 0)
    longest = 0.0

    def misbehave(number):
        dice = random.Random(f"{seed} {number}")
        bad, rounds = Bad(server, dice), 60
        while rounds and not crew.stopping.is_set():
            way = dice.choice(WAYS)
            getattr(bad, way)()
            counts[way] += 1
            rounds -= 1

    with Client(server) as client:
        client.put("good", durability="fsync")
        client.put("fuzzed")
        pids = server.holders()
        for number in range(4):
            crew.start(misbehave, number)
        seq = 0
        while crew.busy:
            began = time.monotonic()
            answer = client.once("POST", "/v0/topics/good", {"records": [{"data": seq}]})
            assert answer.status_code == 200, answer.text
            seq += 1
            assert answer.json()["seqs"] == [seq]
            longest = max(longest, time.monotonic() - began)
        crew.join()
        records = client.read_all("good")[0]
        assert [record["data"] for record in records] == list(range(seq))
        assert client.read_all("fuzzed")[0]
    print(counts, f"{seq} good appends meanwhile, the longest {longest * 1000:.0f} ms")
    for sock in half_open:
        sock.close()
    assert server.holders() == pids  # nobody died
    assert "Traceback" not in server.text(), server.text()
    assert not [line for line in server.lines() if line["level"] == "error"]
    assert server.stop() == 0
