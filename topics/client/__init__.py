"""A client for the HTTP API, and a worker for its queues. Speaks public HTTP alone.

    from topics.client import Client

    with Client("http://127.0.0.1:4000", key="…") as topics:
        topics.append("jobs", [{"data": {"resize": "a.png"}}])

`AsyncClient` is the same for trio. Both try again what failed on the way or was put off by the server, and give every
append an idempotency key, so that a write that is sent twice is made once.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from topics.client.calls import ApiError, Job, Unreachable
from topics.client.retries import Retries
from topics.client.synchronous import Client

if TYPE_CHECKING:
    from topics.client.asynchronous import AsyncClient
    from topics.client.worker import Worker

__all__ = ["Client", "AsyncClient", "Worker", "Job", "ApiError", "Unreachable", "Retries"]

_WITH_TRIO = {"AsyncClient": "topics.client.asynchronous", "Worker": "topics.client.worker"}


def __getattr__(name: str) -> Any:
    """Trio is imported for those who use it: it takes longer than everything else here."""
    if name not in _WITH_TRIO:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_WITH_TRIO[name]), name)
