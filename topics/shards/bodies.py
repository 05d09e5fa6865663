"""How many bytes of request bodies a shard holds at once: those in a thread, and those behind a write in a thread.

The RPC bounds bodies that are still arriving and the log queue bounds what is logged. This is for what is between.
"""

from collections.abc import Callable

from topics import errors, limits
from topics.errors import TopicsError


class Bodies:
    def __init__(self, max_bytes: int = limits.SHARD_BODIES_BYTES) -> None:
        self._max_bytes = max_bytes
        self.bytes = 0
        self.refused = 0

    def take(self, size: int) -> Callable[[], None]:
        """Count a body until the result is called, once or more often. A body on its own is never too large."""
        if self.bytes and self.bytes + size > self._max_bytes:
            self.refused += 1
            raise TopicsError(
                errors.THROTTLED,
                "too many large writes are under way; retry",
                {"limit": "bodies_bytes", "max": self._max_bytes, "retry_after_ms": 500},
            )
        self.bytes += size
        held = size

        def give_back() -> None:
            nonlocal held
            self.bytes -= held
            held = 0

        return give_back
