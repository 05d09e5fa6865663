"""What stands between the app and Hypercorn during one request of HTTP/2: bounds on its body, its answer, its time.

- Bodies count against the gateway's memory (visitor.py) while they arrive. One too many is answered here: the app is
  told that the client is gone.
- The end of an answer is held back until the request's body is through, or has been waited for long enough: Hypercorn
  forgets a stream when its answer ends, and breaks the whole connection when more of that request's body arrives after
  all. The app goes on receiving meanwhile, so the body does come through.
- A client that does not take its answer is cut off, with all its streams: flow control would keep them for ever.
"""

from collections.abc import Awaitable, Callable
from typing import Any

import trio

from topics import limits
from topics.errors import TopicsError
from topics.gateway.dispatch import performance
from topics.gateway.statuses import error_response
from topics.gateway.visitor import Visitor

BODY_WAIT_S = 5.0  # for the rest of a body whose request is already answered
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


class H2Exchange:
    def __init__(self, visitor: Visitor, receive: Receive, send: Send, send_s: float, cut: Callable[[], None]) -> None:
        self._visitor = visitor
        self._receive = receive
        self._send = send
        self._send_s = send_s
        self._cut = cut
        self._size = 0
        self._body_done = trio.Event()
        self._started = False
        self._refusal: TopicsError | None = None

    async def receive(self) -> Any:
        message = await self._receive_piece()
        self._size += len(message.get("body", b""))
        try:
            self._visitor.reserve(self._size)
        except TopicsError as error:
            self._refusal = error
            return {"type": "http.disconnect"}
        return message

    async def _receive_piece(self) -> Any:
        message = await self._receive()
        if message["type"] != "http.request" or not message.get("more_body"):
            self._body_done.set()
        return message

    async def send(self, message: Any) -> None:
        self._started = True
        if message["type"] == "http.response.body" and not message.get("more_body"):
            with trio.move_on_after(BODY_WAIT_S):
                await self._body_done.wait()
        size = len(message.get("body", b""))
        with trio.move_on_after(self._send_s + size / limits.HTTP_BYTES_PER_S) as patience:
            await self._send(message)
        if patience.cancelled_caught:
            self._cut()

    async def settle(self) -> None:
        """The app has returned."""
        if self._refusal is None or self._started:
            return
        with trio.move_on_after(BODY_WAIT_S):
            while not self._body_done.is_set():
                await self._receive_piece()
        self._body_done.set()
        response = error_response(self._refusal)
        headers = [(b"content-type", response.content_type), *response.headers]
        await self.send({"type": "http.response.start", "status": response.status, "headers": headers})
        await self.send({"type": "http.response.body", "body": response.body + performance(0.0, {})})
