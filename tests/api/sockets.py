"""A WebSocket client for tests: commands and their answers, and the frames in between."""

import itertools
import json
import socket
from contextlib import ExitStack
from typing import Any

from websockets.sync.client import ClientConnection, connect

from tests.api.events import WAIT_S


class Socket:
    """One connection. Waits are bounded only so that a test fails instead of hanging."""

    def __init__(self, port: int, key: str = "", *, receive_buffer: int = 0, **options: Any) -> None:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        sock = socket.socket()
        if receive_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.connect(("127.0.0.1", port))
        url = f"ws://127.0.0.1:{port}/v0/ws"
        options = {"max_size": None, "compression": None, "proxy": None} | options
        self._stack = ExitStack()
        connecting = connect(url, sock=sock, additional_headers=headers, **options)
        self.ws: ClientConnection = self._stack.enter_context(connecting)
        self.seen: list[dict[str, Any]] = []  # frames that somebody looked past
        self._ids = itertools.count(1)

    def __enter__(self) -> "Socket":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def send(self, **command: Any) -> None:
        self.ws.send(json.dumps(command))

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """A command's answer, told by its request id."""
        number = f"r{next(self._ids)}"
        self.send(op=op, request_id=number, **fields)
        while (frame := self.receive()).get("request_id") != number:
            self.seen.append(frame)
        return frame

    def next(self, *ops: str) -> dict[str, Any]:
        """The next frame with one of these ops, or any; first those that `ask` has looked past."""
        while True:
            frame = self.seen.pop(0) if self.seen else self.receive()
            if not ops or frame["op"] in ops:
                return frame

    def receive(self) -> dict[str, Any]:
        text = self.ws.recv(WAIT_S)
        assert isinstance(text, str)
        frame: dict[str, Any] = json.loads(text)
        return frame

    def refused(self, code: str, op: str, **fields: Any) -> dict[str, Any]:
        """The error that answers a command. The socket must go on."""
        answer = self.ask(op, **fields)
        assert (answer["op"], answer["code"]) == ("error", code), answer
        assert isinstance(answer["message"], str)
        assert self.ask("ping")["op"] == "pong"
        return answer

    def records(self, count: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while len(found) < count:
            found += self.next("record")["records"]
        return found
