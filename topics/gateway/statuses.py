"""Error codes as HTTP: the one table of statuses, and the error envelope.

| code | status | Retry-After |
|---|---|---|
| throttled | 429 | yes |
| not_ready, shutting_down | 503 | yes |
| storage_full | 507 | yes: writes are refused while the disk is full, reads go on, so a 503 would say too much |
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from topics import errors
from topics.errors import TopicsError
from topics.gateway.messages import WEBSOCKET_VERSION, Refusal, Response

STATUS: Mapping[str, int] = {
    errors.INVALID_REQUEST: 400,
    errors.BATCH_TOO_LARGE: 400,
    errors.RECORD_TOO_LARGE: 400,
    errors.UNAUTHORIZED: 401,
    errors.FORBIDDEN: 403,
    errors.NOT_FOUND: 404,
    errors.TOPIC_NOT_FOUND: 404,
    errors.ROUTER_NOT_FOUND: 404,
    errors.GROUP_NOT_FOUND: 404,
    errors.METHOD_NOT_ALLOWED: 405,
    errors.NOT_ACCEPTABLE: 406,
    errors.ROUTER_CYCLE: 409,
    errors.TOPIC_EXISTS_INCOMPATIBLE: 409,
    errors.TOPIC_NOT_EMPTY: 409,
    errors.NOT_A_QUEUE: 409,
    errors.TAKEN_OVER: 409,
    errors.PAYLOAD_TOO_LARGE: 413,
    errors.UNSUPPORTED_MEDIA_TYPE: 415,
    errors.TOPIC_FULL: 422,
    errors.THROTTLED: 429,
    errors.INTERNAL: 500,
    errors.NOT_READY: 503,
    errors.SHUTTING_DOWN: 503,
    errors.STORAGE_FULL: 507,
}
assert set(STATUS) == errors.CODES

RETRY = frozenset({errors.THROTTLED, errors.NOT_READY, errors.SHUTTING_DOWN, errors.STORAGE_FULL})
RETRY_AFTER_MS = 1000  # when the error itself does not say

_encode = msgspec.json.Encoder().encode


def error_response(error: TopicsError) -> Response:
    """The envelope of API §0.5, still open for `performance`."""
    status = error.status if isinstance(error, Refusal) else STATUS[error.code]
    fields: dict[str, Any] = {"code": error.code, "message": error.message}
    if error.detail:
        fields["detail"] = error.detail
    return Response(b'{"error":' + _encode(fields), status, {}, headers=_headers(error))


def _headers(error: TopicsError) -> tuple[tuple[bytes, bytes], ...]:
    if error.code == errors.METHOD_NOT_ALLOWED:
        return ((b"allow", ", ".join(error.detail.get("allow", ())).encode()),)
    if error.code == errors.UNAUTHORIZED:
        return ((b"www-authenticate", b"Bearer"),)
    if isinstance(error, Refusal) and error.status == 426:
        return ((b"sec-websocket-version", WEBSOCKET_VERSION),)
    if error.code in RETRY:
        wait_ms = error.detail.get("retry_after_ms", RETRY_AFTER_MS)
        return ((b"retry-after", b"%d" % max(1, -(-int(wait_ms) // 1000))),)
    return ()
