"""A gateway in the test's own event loop: real sockets, pretended shards."""

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio

from topics.errors import TopicsError
from topics.gateway.access import Door
from topics.gateway.dispatch import Gateway
from topics.gateway.server import Patience, Server
from topics.gateway.table import ROUTES
from topics.limits import Limits
from topics.rpc.open_calls import Reply, Told

WAIT_S = 60.0  # only bounds a failing test
QUICK = Patience(sweep_s=0.01)


class FakeConnection:
    def __init__(self, scope: trio.CancelScope) -> None:
        self._scope = scope

    def abandon(self, _: int) -> None:
        self._scope.cancel()


class FakeShards:
    """Remembers calls; answers with their body, or as `behave` says."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, dict[str, Any], bytes]] = []
        self.cancelled = 0
        self.begun = 0  # calls without a task of the gateway's
        self.waiting = trio.Event()
        self.behave: Callable[..., Any] | None = None
        self.nursery: trio.Nursery | None = None  # without one, every call needs the task of its connection

    async def call(self, name: str, method: str, head: Any, body: bytes = b"", deadline_ms: int = 0) -> Reply:
        self.calls.append((name, method, dict(head), body))
        if self.behave is not None:
            reply: Reply = await self.behave(name, method, head, body)
            return reply
        await trio.lowlevel.checkpoint()
        return Reply({"created": False, "perf": {}}, b'{"size":%d' % len(body))

    def begin(self, name: str, told: Told, method: str, head: Any, body: bytes, deadline_ms: int) -> bool:
        """As the real one, by a task of its own."""
        if self.nursery is None:
            return False
        self.begun += 1
        scope = trio.CancelScope()

        async def answer() -> None:
            with scope:
                try:
                    told.resolve(await self.call(name, method, head, body, deadline_ms))
                except TopicsError as error:
                    told.reject(error)
                except Exception as error:  # as a bug of the shard's comes over
                    told.reject(TopicsError("internal", str(error)))

        told.began(FakeConnection(scope), 0)  # type: ignore[arg-type]
        self.nursery.start_soon(answer)
        return True

    async def call_all(self, method: str, head: Any, deadline_ms: int = 0) -> dict[int, Reply | TopicsError]:
        return {0: Reply({"ready": True, "replay_progress": 1.0, "topics": 0}, b"")}

    async def hang(self, *_: Any) -> Reply:
        """For `behave`: wait until cancelled."""
        try:
            self.waiting.set()
            await trio.sleep_forever()
        except trio.Cancelled:
            self.cancelled += 1
            raise
        raise AssertionError


class Bench:
    """A running server and a way to talk to it."""

    def __init__(self, server: Server, shards: FakeShards, port: int, stop: trio.Event) -> None:
        self.server = server
        self.shards = shards
        self.port = port
        self.stop = stop
        self.done = trio.Event()  # the server has ended

    @asynccontextmanager
    async def client(self) -> AsyncIterator["Client"]:
        async with await trio.open_tcp_stream("127.0.0.1", self.port) as stream:
            yield Client(stream)

    async def exchange(self, data: bytes) -> bytes:
        """Send, close the sending side, read all."""
        async with self.client() as client:
            await client.send(data)
            return await client.rest()


class Client:
    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.buffer = b""

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def more(self) -> bool:
        with trio.fail_after(WAIT_S):
            try:
                data = await self.stream.receive_some(65536)
            except trio.BrokenResourceError:
                data = b""
        self.buffer += data
        return bool(data)

    async def rest(self) -> bytes:
        while await self.more():
            pass
        data, self.buffer = self.buffer, b""
        return data

    async def until(self, mark: bytes) -> bytes:
        """What comes up to and with `mark`."""
        while mark not in self.buffer:
            assert await self.more(), self.buffer
        end = self.buffer.index(mark) + len(mark)
        data, self.buffer = self.buffer[:end], self.buffer[end:]
        return data

    async def response(self, *, head_only: bool = False) -> "Answer":
        """One answer, with a length or in chunks."""
        head = await self.until(b"\r\n\r\n")
        answer = Answer(head)
        if head_only or answer.status in (100, 101, 204, 304):
            return answer
        if answer.headers.get(b"transfer-encoding") == b"chunked":
            while size := int(await self.until(b"\r\n"), 16):
                answer.body += (await self._exactly(size + 2))[:-2]
            await self._exactly(2)
        elif b"content-length" in answer.headers:
            answer.body = await self._exactly(int(answer.headers[b"content-length"]))
        else:
            answer.body = await self.rest()
        return answer

    async def _exactly(self, size: int) -> bytes:
        while len(self.buffer) < size:
            assert await self.more(), self.buffer
        data, self.buffer = self.buffer[:size], self.buffer[size:]
        return data

    async def request(self, method: str, path: str, body: bytes = b"", headers: str = "") -> "Answer":
        await self.send(request(method, path, body, headers))
        return await self.response(head_only=method == "HEAD")


class Answer:
    def __init__(self, head: bytes) -> None:
        line, *lines = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
        self.status = int(line.split(b" ")[1])
        pairs = [each.split(b": ", 1) for each in lines]
        assert len({name for name, _ in pairs}) == len(pairs), head
        self.headers = dict(pairs)
        self.body = b""

    @property
    def closes(self) -> bool:
        return self.headers.get(b"connection") == b"close"


def request(method: str, path: str, body: bytes = b"", headers: str = "") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: test\r\n{headers}"
    if body or method in ("POST", "PUT"):
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


def chunked(method: str, path: str, *chunks: bytes, headers: str = "Content-Type: application/json\r\n") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: test\r\n{headers}Transfer-Encoding: chunked\r\n\r\n".encode()
    return head + b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"


def http_only(app: Any) -> Any:
    """An ASGI app that has nothing to start or stop."""

    async def with_lifespan(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan":
            await app(scope, receive, send)
            return
        for step in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{step}.complete"})

    return with_lifespan


def make_app(gateway: Gateway) -> Any:
    from topics.gateway.app import create_app  # takes long, and is not needed for hot routes

    return create_app(gateway)


@asynccontextmanager
async def serving(
    app: Any = None,
    *,
    patience: Patience = QUICK,
    body_bytes: int = 1 << 20,
    grace_s: float = WAIT_S,
    door: Door | None = None,
    max_connections: int = 0,
) -> AsyncIterator[Bench]:
    """A server on a free port until the block ends. `app` stands in for Quart."""
    shards = FakeShards()
    gateway = Gateway(shards, ROUTES, Limits(body_bytes=body_bytes), door=door or Door())  # type: ignore[arg-type]
    server = Server(gateway, (lambda _: http_only(app)) if app else make_app, patience, max_connections=max_connections)
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    bench = Bench(server, shards, listener.getsockname()[1], trio.Event())

    async def run(*, task_status: Any) -> None:
        await server.run(listener, bench.stop, grace_s, task_status=task_status)
        bench.done.set()

    async with trio.open_nursery() as nursery:
        shards.nursery = nursery
        await nursery.start(run)
        yield bench
        nursery.cancel_scope.cancel()


async def until(condition: Callable[[], Any]) -> None:
    """Let everybody run until something is true."""
    with trio.fail_after(WAIT_S):
        while not condition():
            await trio.sleep(0.001)
