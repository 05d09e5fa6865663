"""Young garbage collections that stay short however much waits.

The interpreter begins one when so many more objects were made than freed. While thousands of writes wait for their sync
and others are answered, those numbers are about the same, nothing is collected, and then one collection looks at all
that has come meanwhile: 16 ms with 20,000 writes in flight. So while many wait there is one after so many calls in any
case, which looks at what came since the last one.
"""

import gc

from topics import limits
from topics.shards.logqueue import LogQueue


class YoungCollections:
    def __init__(self) -> None:
        self._calls = 0

    def note_call(self, log: LogQueue) -> None:
        self._calls += 1
        if self._calls >= limits.GC_CALLS:
            self._calls = 0
            if log.last_lsn - log.durable_lsn > limits.GC_IN_FLIGHT:
                gc.collect(1)
