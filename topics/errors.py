"""The closed error taxonomy.

Every refusal the product can give is a `TopicsError` with one of the codes below. The code travels unchanged from
the pure core through the RPC to the HTTP envelope; only the gateway knows HTTP statuses.
"""

from collections.abc import Mapping
from typing import Any

INVALID_REQUEST = "invalid_request"
BATCH_TOO_LARGE = "batch_too_large"
RECORD_TOO_LARGE = "record_too_large"
UNAUTHORIZED = "unauthorized"
FORBIDDEN = "forbidden"
NOT_FOUND = "not_found"
TOPIC_NOT_FOUND = "topic_not_found"
ROUTER_NOT_FOUND = "router_not_found"
GROUP_NOT_FOUND = "group_not_found"
METHOD_NOT_ALLOWED = "method_not_allowed"
NOT_ACCEPTABLE = "not_acceptable"
ROUTER_CYCLE = "router_cycle"
TOPIC_EXISTS_INCOMPATIBLE = "topic_exists_incompatible"
TOPIC_NOT_EMPTY = "topic_not_empty"
NOT_A_QUEUE = "not_a_queue"
TAKEN_OVER = "taken_over"
PAYLOAD_TOO_LARGE = "payload_too_large"
UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"
TOPIC_FULL = "topic_full"
THROTTLED = "throttled"
INTERNAL = "internal"
NOT_READY = "not_ready"
SHUTTING_DOWN = "shutting_down"
STORAGE_FULL = "storage_full"

CODES = frozenset(value for name, value in list(globals().items()) if name.isupper() and isinstance(value, str))
COLD_UNAVAILABLE = "cold_unavailable"  # as the `reason` of a NOT_READY: somebody has to bring the cold directory back


class TopicsError(Exception):
    """A refusal with a stable code, a message that says what to change, and structured detail."""

    def __init__(self, code: str, message: str, detail: Mapping[str, Any] | None = None) -> None:
        assert code in CODES, code
        super().__init__(message)
        self.code = code
        self.message = message
        self.detail: dict[str, Any] = dict(detail or {})

    def __repr__(self) -> str:
        return f"TopicsError({self.code!r}, {self.message!r}, {self.detail!r})"


def invalid(message: str, **detail: Any) -> TopicsError:
    """The request itself is wrong; retrying it unchanged cannot help."""
    return TopicsError(INVALID_REQUEST, message, detail)


def not_a_queue(name: str) -> TopicsError:
    message = f'topic "{name}" is a log, not a queue; only a topic made with "type":"queue" has jobs'
    return TopicsError(NOT_A_QUEUE, message, {"topic": name})


def topic_not_found(name: str, hint: str = "") -> TopicsError:
    """`hint` says why the request did not create it, and what would."""
    return TopicsError(TOPIC_NOT_FOUND, f'topic "{name}" does not exist{hint and ", " + hint}', {"topic": name})
