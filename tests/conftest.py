"""For all tests."""

import gc
import signal
from collections.abc import Iterator

import httpx
import hypothesis
import pytest

PATIENCE_S = 60.0

hypothesis.settings.register_profile("patient", deadline=None)
hypothesis.settings.load_profile("patient")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell started us in the background; programs would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def nothing_is_frozen() -> Iterator[None]:
    """A shard freezes what it holds: its process lives no longer than it does. Here many come and go in one process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gc, "freeze", lambda: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def httpx_is_patient() -> Iterator[None]:
    """How long an answer takes decides no test: a wait that ends is there to fail instead of hanging."""
    with pytest.MonkeyPatch.context() as patch:
        for kind in ("connect", "read", "write", "pool"):
            patch.setattr(httpx._config.DEFAULT_TIMEOUT_CONFIG, kind, PATIENCE_S)
        yield
