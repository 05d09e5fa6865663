"""For all tests."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="session")
def nothing_is_frozen() -> Iterator[None]:
    """A shard freezes what it holds: its process lives no longer than it does. Here many come and go in one process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gc, "freeze", lambda: None)
        yield
