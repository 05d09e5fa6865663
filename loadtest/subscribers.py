"""Live subscribers of one kind or another, all on raw sockets in one process, so that the client is the same for all.

A published record carries the moment it was due; a subscriber finds records by how they begin, and never parses more.
"""

import re
import selectors
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from loadtest.http import Address, Connection, post
from loadtest.records import DATA_BYTES
from loadtest.together import Ready
from loadtest.workload import WrongAnswer

MARK = b'{"at":"'
STAMP_DIGITS = 16
_FILL = b'","url":"s3://bucket/' + b"a" * (DATA_BYTES - len(MARK) - STAMP_DIGITS - 27) + b'.png"}'
STAMP = re.compile(re.escape(MARK) + rb"(\d{%d})" % STAMP_DIGITS)
QUIET_S = 20.0


def payload(at: float) -> bytes:
    """A record that says when it was due."""
    return b"%b%0*d%b" % (MARK, STAMP_DIGITS, int(at * 1e6), _FILL)


@dataclass(slots=True)
class Subscriber:
    """One connection. `again` is for those who have to ask for more: the next request, made from what came."""

    sock: socket.socket
    again: Callable[[bytes], bytes] | None = None
    count: int = 0
    rest: bytes = b""
    pending: bytes = b""


@dataclass(slots=True)
class Received:
    ended: float  # when the last record came
    latencies: list[float] = field(default_factory=list)


def receive(subscribers: Sequence[Subscriber], each: int, timed: bool, ready: Ready) -> Received:
    """Until every subscriber has `each` records."""
    selector = selectors.DefaultSelector()
    for subscriber in subscribers:
        subscriber.sock.setblocking(False)
        selector.register(subscriber.sock, selectors.EVENT_READ, subscriber)
    missing, received = len(subscribers), Received(0.0)
    ready()
    while missing:
        found = selector.select(QUIET_S)
        if not found:
            counts = sorted(subscriber.count for subscriber in subscribers)
            raise WrongAnswer(f"{missing} subscribers wait for records that do not come: {counts[0]} of {each}")
        for key, _ in found:
            one: Subscriber = key.data
            before = one.count
            _take(one, received, timed)
            missing -= before < each <= one.count
    received.ended = time.perf_counter()
    if any(subscriber.count != each for subscriber in subscribers):
        raise WrongAnswer(f"a subscriber got more than {each} records")
    return received


def _take(subscriber: Subscriber, received: Received, timed: bool) -> None:
    data = subscriber.sock.recv(1 << 18)
    if not data:
        raise WrongAnswer("the server closed a subscriber's connection")
    text = subscriber.rest + data
    subscriber.count += text.count(MARK)
    keep = len(MARK) + STAMP_DIGITS - 1
    if timed:
        now = time.perf_counter()
        stamps = STAMP.findall(text)
        subscriber.count += len(stamps) - text.count(MARK)  # one whose stamp is cut off counts with the next piece
        received.latencies += [now - int(stamp) / 1e6 for stamp in stamps]
        cut = text.rfind(MARK)
        subscriber.rest = text[cut:] if cut >= 0 and len(text) - cut <= keep else text[-(len(MARK) - 1) :]
    else:
        subscriber.rest = text[-(len(MARK) - 1) :]
    if subscriber.again is not None:
        subscriber.pending += data
        request = subscriber.again(subscriber.pending)
        if request:
            subscriber.pending = b""
            subscriber.sock.sendall(request)


# --- who subscribes to what ---------------------------------------------------------------------------------------


def connect(address: Address) -> socket.socket:
    sock = socket.create_connection(address)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def by_event_stream(address: Address, topic: str) -> Subscriber:
    body = b'{"topics":{"%b":{"tail":true}},"max_batch_bytes":262144}' % topic.encode()
    with Connection(address) as connection:
        answer = bytes(connection.ask(post("/v0/watch", body)))
    path = re.search(rb'"stream_url":"([^"]+)"', answer)
    if path is None:
        raise WrongAnswer(f"no stream in {answer!r}")
    sock = connect(address)
    sock.sendall(b"GET %b HTTP/1.1\r\nhost: x\r\naccept: text/event-stream\r\n\r\n" % path[1])
    _wait_for(sock, b"event: caught-up")
    return Subscriber(sock)


def by_redis_channel(address: Address, channel: str) -> Subscriber:
    sock = connect(address)
    sock.sendall(b"SUBSCRIBE %b\r\n" % channel.encode())
    _wait_for(sock, b":1\r\n")
    return Subscriber(sock)


ENTRY_ID = re.compile(rb"\r\n(\d+-\d+)\r\n")


def by_redis_stream(address: Address, stream: str) -> Subscriber:
    sock = connect(address)
    last = [b"0-0"]  # of a stream that is new: `$` would be decided only when the server reads the question

    def ask() -> bytes:
        return b"XREAD COUNT 1000 BLOCK 0 STREAMS %b %b\r\n" % (stream.encode(), last[0])

    def again(data: bytes) -> bytes:
        """The next question when the answer is whole: its last entry is there with its payload."""
        ids = ENTRY_ID.findall(data)
        if not ids or not data.endswith(_FILL + b"\r\n") or len(ids) != _announced(data):
            return b""
        last[0] = ids[-1]
        return ask()

    sock.sendall(ask())
    return Subscriber(sock, again)


def _announced(data: bytes) -> int:
    """How many entries an answer to XREAD has: `*1 *2 $name *entries`."""
    lines = data.split(b"\r\n", 5)
    return int(lines[4][1:]) if len(lines) == 6 else -1


def by_nats_subject(address: Address, subject: str) -> Subscriber:
    sock = connect(address)
    sock.sendall(b'CONNECT {"verbose":false}\r\nSUB %b 1\r\nPING\r\n' % subject.encode())
    _wait_for(sock, b"PONG\r\n")
    return Subscriber(sock)


def _wait_for(sock: socket.socket, text: bytes) -> None:
    sock.settimeout(QUIET_S)
    seen = b""
    while text not in seen:
        data = sock.recv(4096)
        if not data:
            raise WrongAnswer(f"the server closed a connection after {seen!r}")
        seen += data


# --- who publishes ------------------------------------------------------------------------------------------------

Publish = Callable[[float], None]


def topic_publisher(address: Address, topic: str) -> Publish:
    connection = Connection(address)
    path = f"/v0/topics/{topic}?return_seqs=false"

    def publish(at: float) -> None:
        connection.ask(post(path, b'{"records":[{"data":%b}]}' % payload(at)))

    return publish


def redis_publisher(address: Address, command: bytes) -> Publish:
    """`command` is everything before the payload."""
    sock = connect(address)

    def publish(at: float) -> None:
        sock.sendall(b"%b$%d\r\n%b\r\n" % (command, DATA_BYTES, payload(at)))
        if sock.recv(256)[:1] == b"-":
            raise WrongAnswer("Redis refused a record")

    return publish


def channel_command(channel: str) -> bytes:
    return b"*3\r\n$7\r\nPUBLISH\r\n$%d\r\n%b\r\n" % (len(channel), channel.encode())


def stream_command(stream: str) -> bytes:
    return b"*5\r\n$4\r\nXADD\r\n$%d\r\n%b\r\n$1\r\n*\r\n$1\r\nd\r\n" % (len(stream), stream.encode())


def nats_publisher(address: Address, subject: str) -> Publish:
    sock = connect(address)
    sock.sendall(b'CONNECT {"verbose":true}\r\n')
    _wait_for(sock, b"+OK\r\n")

    def publish(at: float) -> None:
        sock.sendall(b"PUB %b %d\r\n%b\r\n" % (subject.encode(), DATA_BYTES, payload(at)))
        if not sock.recv(256):
            raise WrongAnswer("NATS closed the connection")

    return publish


def publish_all(make: Callable[[], Publish], count: int, rate: float, ready: Ready) -> float:
    """Publish one after another, `rate` a second (0: as fast as answers come); when it began."""
    publish = make()
    ready()
    began = time.perf_counter()
    for number in range(count):
        due = began + number / rate if rate else time.perf_counter()
        while (wait := due - time.perf_counter()) > 0:
            time.sleep(wait)
        publish(due)
    return began


assert len(payload(0.0)) == DATA_BYTES
