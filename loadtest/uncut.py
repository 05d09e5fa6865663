"""A server that never checkpoints by itself, so that its log grows as long as a recovery is to be measured with.

`python -m loadtest.uncut serve` is `topics serve` with `python -m loadtest.uncut shard` as its shards. A clean stop
still stores a checkpoint, as always.
"""

import os
import sys

from topics import limits
from topics.settings import core_count, load
from topics.supervisor.programs import Programs


def serve() -> int:
    from topics.supervisor.start import run

    loaded = load(os.environ, {}, tty=False, cores=core_count())
    return run(loaded, Programs(shard=(sys.executable, "-P", "-m", "loadtest.uncut", "shard")))


def shard(argv: list[str]) -> int:
    from topics.shards.__main__ import main

    limits.CHECKPOINT_WAL_BYTES = 1 << 50
    limits.CHECKPOINT_INTERVAL_MS = 1 << 50
    return main(argv)


if __name__ == "__main__":
    sys.exit(shard(sys.argv[2:]) if sys.argv[1] == "shard" else serve())
