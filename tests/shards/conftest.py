from collections.abc import Iterator
from pathlib import Path

import pytest

from topics.testing.shard_process import ShardProcess


@pytest.fixture
def shard(tmp_path: Path) -> Iterator[ShardProcess]:
    process = ShardProcess(tmp_path / "shard")
    yield process
    process.clean_up()
