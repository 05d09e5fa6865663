"""For all tests."""

import gc
import os
import signal
import threading
import time
from collections.abc import Iterator

import httpx
import hypothesis
import pytest

from topics.testing.watched_shards import VIOLATIONS, watch_shards

PATIENCE_S = 60.0

# A commit is judged by the same examples each time it is tested; a deeper run looks for new ones.
DEEPER = int(os.environ.get("TOPICS_TEST_DEPTH", "1")) > 1
hypothesis.settings.register_profile("patient", deadline=None, derandomize=not DEEPER)
hypothesis.settings.load_profile("patient")

watch_shards()  # before any test is imported

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell started us in the background; programs would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def nothing_is_frozen() -> Iterator[None]:
    """A shard freezes what it holds: its process lives no longer than it does. Here many come and go in one process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gc, "freeze", lambda: None)
        yield


@pytest.fixture(autouse=True)
def disk_is_used_in_order() -> Iterator[None]:
    """No ack before its sync, no rename before it, no unlink before the successor is durable: whatever a test does."""
    yield
    found = VIOLATIONS[:]
    VIOLATIONS.clear()
    assert found == []


@pytest.fixture(autouse=True)
def no_committer_is_left() -> Iterator[None]:
    """Whoever drops a shard ends its thread: it would live as long as the process, with all that the shard held."""
    before = committers()
    yield
    until = time.monotonic() + PATIENCE_S
    for thread in committers() - before:  # one whose log has failed ends by itself
        thread.join(max(0.0, until - time.monotonic()))
    left = committers() - before
    assert not left, f"{len(left)} threads of shards that nobody has stopped"


def committers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "committer"}


@pytest.fixture(autouse=True, scope="session")
def httpx_is_patient() -> Iterator[None]:
    """How long an answer takes decides no test: a wait that ends is there to fail instead of hanging."""
    with pytest.MonkeyPatch.context() as patch:
        for kind in ("connect", "read", "write", "pool"):
            patch.setattr(httpx._config.DEFAULT_TIMEOUT_CONFIG, kind, PATIENCE_S)
        yield
