"""`topics serve` with other programs for its children: STANDIN_GATEWAY and STANDIN_SHARD hold their commands."""

import os
import shlex
import sys

from topics.settings import core_count, load
from topics.supervisor.programs import SHARD, Programs
from topics.supervisor.start import run

if __name__ == "__main__":
    shard = shlex.split(os.environ["STANDIN_SHARD"]) or SHARD
    gateway = shlex.split(os.environ["STANDIN_GATEWAY"])
    loaded = load(os.environ, {}, tty=False, cores=core_count())
    sys.exit(run(loaded, Programs(shard=shard, gateway=gateway)))
