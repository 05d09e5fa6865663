"""Errors as they travel: a TopicsError arrives as it was raised, anything else as `internal` without its insides."""

import logging
from typing import Any

from topics.errors import CODES, INTERNAL, TopicsError
from topics.rpc.errors import ProtocolError
from topics.rpc.wire import pack_head

logger = logging.getLogger(__name__)

MESSAGE_MAX = 4096  # characters of a message whose detail could not travel


def encode_error(error: BaseException, method: str) -> bytes:
    """The head of an ERROR frame. Never raises; what the caller may not see is logged here."""
    root = _root_of(error)
    if not isinstance(root, TopicsError):
        logger.error("%s failed", method, exc_info=error)
        root = TopicsError(INTERNAL, "internal error; see the server's log", {"method": method})
    try:
        return pack_head({"code": root.code, "message": root.message, "detail": root.detail})
    except Exception:
        logger.exception("the detail of an error of %s cannot travel", method)
        return pack_head({"code": root.code, "message": root.message[:MESSAGE_MAX], "detail": {}})


def decode_error(head: Any) -> TopicsError:
    if not isinstance(head, dict):
        raise ProtocolError("the peer sent an error without a map")
    code, message, detail = head.get("code"), head.get("message"), head.get("detail")
    if code not in CODES or not isinstance(message, str) or not isinstance(detail, dict):
        raise ProtocolError(f"the peer sent an error of unknown form (code {code!r})")
    return TopicsError(code, message, detail)


def _root_of(error: BaseException) -> BaseException:
    """A nursery wraps what its child raised: look inside as long as there is just one."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
