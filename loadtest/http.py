"""Requests per second over HTTP, with a client that costs as little as Python can.

    python -m loadtest.http http://127.0.0.1:4000 --route append --connections 64 --seconds 3

One process, one epoll, one request under way per connection; answers are only measured, not parsed. Prints JSON.
"""

import argparse
import json
import select
import socket
import statistics
import sys
import time
from urllib.parse import urlsplit

RECORD = {"type": "resize", "url": "s3://bucket/" + "a" * 180, "w": 256, "h": 256, "trace": "0123456789abcdef"}


def request_bytes(method: str, path: str, host: str, body: bytes = b"") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nhost: {host}\r\n"
    if body:
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


def requests_for(route: str, host: str, topic: str, batch: int) -> bytes:
    if route == "health":
        return request_bytes("GET", "/v0/health", host)
    if route == "state":
        return request_bytes("GET", f"/v0/topics/{topic}", host)
    if route == "diff":
        return request_bytes("POST", f"/v0/topics/{topic}/diff", host, json.dumps({"limit": batch}).encode())
    body = json.dumps({"records": [{"data": RECORD}] * batch}, separators=(",", ":")).encode()
    return request_bytes("POST", f"/v0/topics/{topic}?return_seqs=false", host, body)


class Client:
    """One connection."""

    def __init__(self, address: tuple[str, int], request: bytes) -> None:
        self.sock = socket.create_connection(address)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.request = request
        self.began = 0.0
        self._need = 0
        self._have = 0
        self._head = b""

    def send(self) -> None:
        self.began = time.perf_counter()
        self._need = self._have = 0
        self._head = b""
        self.sock.sendall(self.request)

    def receive(self) -> bool:
        """Read what is there; True when the answer is complete."""
        data = self.sock.recv(1 << 20)
        if not data:
            raise ConnectionError("the server closed a connection")
        self._have += len(data)
        if not self._need:
            self._head += data
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                return False
            if self._head[9:10] != b"2":
                raise RuntimeError(self._head.decode(errors="replace"))
            start = self._head.index(b"content-length: ") + 16
            self._need = end + 4 + int(self._head[start : self._head.index(b"\r", start)])
        return self._have >= self._need


def measure(address: tuple[str, int], request: bytes, connections: int, seconds: float) -> dict[str, float]:
    clients = {client.sock.fileno(): client for client in (Client(address, request) for _ in range(connections))}
    poll = select.epoll()
    for fd, client in clients.items():
        poll.register(fd, select.EPOLLIN)
        client.send()
    times: list[float] = []
    began = time.perf_counter()
    until = began + seconds
    now = began
    while now < until:
        for fd, _ in poll.poll(1):
            client = clients[fd]
            if client.receive():
                now = time.perf_counter()
                times.append(now - client.began)
                client.send()
    for client in clients.values():
        client.sock.close()
    times.sort()
    return {
        "requests_per_s": round(len(times) / (now - began)),
        "p50_ms": round(statistics.median(times) * 1000, 3),
        "p99_ms": round(times[int(len(times) * 0.99)] * 1000, 3),
    }


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtest.http", description="Measure requests per second.")
    parser.add_argument("url")
    parser.add_argument("--route", choices=("append", "diff", "health", "state"), default="append")
    parser.add_argument("--topic", default="load")
    parser.add_argument("--batch", type=int, default=1, help="records per append, or limit of a diff")
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=3.0)
    args = parser.parse_args(argv)
    where = urlsplit(args.url)
    address = (where.hostname or "127.0.0.1", where.port or 80)
    request = requests_for(args.route, where.netloc, args.topic, args.batch)
    result = measure(address, request, args.connections, args.seconds)
    print(json.dumps({"route": args.route, "connections": args.connections, "batch": args.batch, **result}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
