"""Remembered keys of one topic: idempotency key → the seqs its write was given, dedup key → the seq of its record.

Keys are kept as 128-bit BLAKE2 digests, so a key costs the same whatever its length and nobody can make two collide.
A key is forgotten only when its window has passed; the shard refuses new keys at its bound instead of dropping one.
A checkpoint stores the keys that came since the one before (`take_fresh`): a window may hold a million.

None of that takes long, however many there are: keys come, are stored and are forgotten in runs (keyruns.py). What is
forgotten is found no more and does not count, but stays in the table until `tidy` has come by.
"""

from bisect import bisect_left
from hashlib import blake2b
from typing import NamedTuple

from topics.core import keyruns
from topics.core.keyruns import RUN_KEYS, NewKeys, Run, pack_value, unpack_value
from topics.core.keytable import KeyTable

TIDY_STEP = 256  # keys that leave the table in one go
END_OF_TIME = 1 << 64


class Remembered(NamedTuple):
    first_seq: int
    records: int
    ts: int


def digest_key(key: str) -> bytes:
    return blake2b(key.encode(), digest_size=16).digest()


def digest_record_key(key: str) -> bytes:
    """Of a `dedup_key`: never the digest of an idempotency key, although the two are kept side by side."""
    return blake2b(key.encode(), digest_size=16, person=b"record").digest()


class KeyWindow:
    __slots__ = ("_count", "_fresh", "_old", "_open", "_runs", "_table", "_twice", "floor")

    def __init__(self) -> None:
        self._table = KeyTable()
        self._runs: list[Run] = []  # with keys that are not forgotten
        self._open: Run | None = None  # the last one, if it may grow
        self._old: list[Run] = []  # all forgotten, and to be taken out of the table
        self._fresh: list[Run] = []  # what no checkpoint has stored yet
        self._count = 0
        self.floor = 0  # what is older is forgotten, also by a window that grows later
        self._twice: dict[int, int] = {}  # by ts, how many stand in a run that came again before they were forgotten

    def __len__(self) -> int:
        return self._count

    def find(self, digest: bytes, now_ms: int, window_ms: int) -> Remembered | None:
        value = self._table.get(digest)
        if value is None:
            return None
        found = Remembered._make(unpack_value(value))
        return None if now_ms - found.ts > window_ms or found.ts < self.floor else found

    # --- remembering ----------------------------------------------------------------------------------------------

    def add(self, digest: bytes, first_seq: int, records: int, ts: int) -> None:
        self._put(digest, pack_value(first_seq, records, ts), ts)

    def add_all(self, keys: NewKeys) -> None:
        """None of them is there, unless it is forgotten."""
        self._open = None
        self._runs += keys.runs
        self._fresh += keys.runs
        self._count += sum(map(len, keys.runs))
        self._table.put_all(keys.spread)

    def _put(self, digest: bytes, value: bytes, ts: int) -> None:
        run = self._open
        if run is None or len(run.stamps) >= RUN_KEYS:
            run = self._open = Run([], [], [])
            self._runs.append(run)
            self._fresh.append(run)
        run.digests.append(digest)
        run.values.append(value)
        run.stamps.append(ts)
        self._count += 1
        replaced = self._table.put(digest, value)
        if replaced is not None:
            self._replaced(replaced)

    def _replaced(self, value: bytes) -> None:
        """It does not count any more, if it still did."""
        ts = unpack_value(value)[2]
        if ts >= self.floor:
            self._twice[ts] = self._twice.get(ts, 0) + 1
            self._count -= 1

    # --- forgetting -----------------------------------------------------------------------------------------------

    def forget_before(self, ts: int) -> int:
        """Forget the keys older than `ts`; how many that are."""
        runs = self._runs
        if not runs or runs[0].stamps[runs[0].gone] >= ts:
            return 0
        before = self._count
        over = bisect_left(runs, ts, key=_newest)
        for run in runs[:over]:
            self._forget(run, len(run))
        if over:
            self._old += runs[:over]
            del runs[:over]
            self._fresh = [run for run in self._fresh if run.stamps[-1] >= ts]
        if runs:
            self._forget(runs[0], bisect_left(runs[0].stamps, ts, runs[0].gone))
        else:
            self._open = None
        for stamp in [stamp for stamp in self._twice if stamp < ts]:
            self._count += self._twice.pop(stamp)
        self.floor = ts
        return before - self._count

    def _forget(self, run: Run, upto: int) -> None:
        self._count -= upto - run.gone
        run.gone = upto

    @property
    def untidy(self) -> bool:
        """Whether there are forgotten keys in the table, or some that are not in their place yet."""
        return bool(self._table.has_lots or self._old or (self._runs and self._runs[0].swept < self._runs[0].gone))

    def tidy(self) -> bool:
        """Take some of those out, or put them there; whether there are more."""
        left = self._table.merge(TIDY_STEP)
        while left and self.untidy:
            run = self._old[-1] if self._old else self._runs[0]
            upto = min(run.gone, run.swept + left)
            while run.swept < upto:
                at = run.swept
                run.swept += 1
                left -= 1
                if self._table.discard(run.digests[at], run.values[at]):
                    left = 0
                    break
            if run.swept == len(run):
                self._old.pop()
        if not (self._count or self.untidy):
            self._table = KeyTable()
        return self.untidy

    # --- storing --------------------------------------------------------------------------------------------------

    def take_fresh(self, below_seq: int | None = None) -> list[Run]:
        """The keys to store now; those of seqs from `below_seq` on have to wait. What is taken changes no more."""
        fresh, self._fresh = self._fresh, []
        self._open = None
        if below_seq is None:
            return fresh
        parts = [run.cut(below_seq) for run in fresh]
        self._fresh = [later for _, later in parts if later is not None]
        return [taken for taken, _ in parts if taken is not None]

    def give_back(self, runs: list[Run]) -> None:
        """They were not stored after all."""
        self._fresh = runs + self._fresh

    def load(self, stored: bytes) -> None:
        """Into a window that is empty."""
        for digest, value, ts in keyruns.decode(stored):
            self._put(digest, value, ts)
        self._open, self._fresh = None, []


def _newest(run: Run) -> int:
    return run.stamps[-1]
