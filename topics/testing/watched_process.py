"""A shard process under the ordering monitor: `python -m topics.testing.watched_process` instead of `topics.shards`.

It ends at the first violation, with a status of its own: whoever started it is not there to be told.
"""

import os
import sys

from topics.testing import watched_shards

EXIT_DISORDER = 99


class _Fatal(list[str]):
    def append(self, violation: str) -> None:
        sys.stderr.write(f"the disk is used in the wrong order: {violation}\n")
        sys.stderr.flush()
        os._exit(EXIT_DISORDER)


if __name__ == "__main__":
    watched_shards.VIOLATIONS = _Fatal()
    watched_shards.watch_shards()
    from topics.shards.__main__ import main

    sys.exit(main())
