"""Where requests come from one after another: a connection of HTTP/1, or one stream of HTTP/2.

A visitor knows the key its connection was last accepted with and holds what its request takes up: a place among its
key's requests, and memory for a body. The transport calls `leave` in a `finally` when the answer is out or the client
is gone, whatever happened in between.
"""

from topics import limits
from topics.gateway.messages import Body
from topics.gateway.slots import RequestSlots, throttled
from topics.keys import ConnectionKey


class BodyMemory:
    """How many bytes of request bodies one gateway holds. What does not fit is refused: waiting bodies hold memory."""

    def __init__(self, most: int = limits.HTTP_BODIES_BYTES) -> None:
        self.most = most
        self.used = 0


class Visitor:
    __slots__ = ("_bytes", "_key", "_memory", "_requests", "keys", "stream")

    def __init__(self, keys: ConnectionKey, requests: RequestSlots, memory: BodyMemory) -> None:
        self.keys = keys
        self.stream: Body | None = None  # of the answer; a client may be gone before it is even begun
        self._requests = requests
        self._memory = memory
        self._key = -1
        self._bytes = 0

    def enter(self, key: int) -> None:
        """Count as a request of this key. Raises `throttled`."""
        assert self._key < 0
        if self._requests.take(key):
            self._key = key

    def reserve(self, size: int) -> None:
        """The body of the present request has, or will have, `size` bytes. Raises `throttled`. Small ones are free."""
        if size <= limits.HTTP_FREE_BODY_BYTES or size <= self._bytes:
            return
        memory = self._memory
        if memory.used + size - self._bytes > memory.most:
            raise throttled("max_body_memory", memory.most, "too many large bodies are under way")
        memory.used += size - self._bytes
        self._bytes = size

    def leave(self) -> None:
        """The request is over."""
        if self._key >= 0:
            self._requests.give_back(self._key)
            self._key = -1
        if self._bytes:
            self._memory.used -= self._bytes
            self._bytes = 0
        if self.stream is not None:
            self.stream.close()
            self.stream = None
