"""The board: a small shared-memory file with what every process of an instance needs to know at once.

The supervisor creates it in the run directory before it starts a child; it lives as long as the server. All cells are
little-endian u64, 8-byte aligned, so that one is read and written whole; a set of cells is not a snapshot.

    cell                                   writer
    0    magic "TOPBOARD"                  supervisor, once
    1    version (2)                       supervisor, once
    2    shards S, 3 gateways G, 4 keys K  supervisor, once
    5    started_ms of the server          supervisor, once
    6    phase (STARTING, READY, DRAINING) supervisor
    7–15 reserved
    16   S watch slots of 8 cells          supervisor: WATCH_FIELDS, what it sees of each shard
    …    G watch slots of 8 cells          supervisor: the same of each gateway
    …    S shard slots of 64 cells         shard i: SHARD_FIELDS
    …    G gateway slots of 16 + 2·K cells gateway i: GATEWAY_FIELDS, then per key: requests under way, open streams
    …    G times of O·24 cells             gateway i: per operation, how long answers took, see OP_CELLS; O operations

A slot has one writer, so no cell is ever lost to a race. Caps over the whole instance are exact because a creation
runs in `with board.locked()`: sum, compare, bump the own slot. That is a flock, which the kernel frees when its holder
dies; nothing in the section may wait for anything. A holder that lives but does not run (a stopped process) makes
creations fail with `not_ready` after a short while; nothing else needs the lock. When a child dies the supervisor
clears what its connections held, not its topics or bytes: those are on disk and come back with it. A shard's numbers
count from the moment it says so (`counted`); until all have, sums over shards are too low to admit anything by.
"""

import fcntl
import mmap
import os
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from typing import NamedTuple

from topics import errors, limits
from topics.errors import TopicsError
from topics.keys import ROUTE_SCOPES

MAGIC = int.from_bytes(b"TOPBOARD", "little")
VERSION = 2
HEADER_CELLS = 16
WATCH_CELLS = 8
SHARD_CELLS = 64
GATEWAY_CELLS = 16
PROGRESS_WHOLE = 1_000_000  # replay_progress is kept in millionths

WATCH_FIELDS = ("state", "pid", "restarts", "since_ms", "replay_progress", "topics")
FSYNC_BUCKETS = 32
FSYNC_BOUNDS_US = (50, 100, 200, 300, 500, 1_000, 2_000, 5_000, 10_000, 50_000, 100_000, 1_000_000)
SHARD_FIELDS = (
    "counted",  # 1 once the shard has told its topics and bytes since the server started
    "replay_progress",
    "topics",
    "routers",
    "sessions",
    "records_live",
    "bytes_live",
    "leases",
    "wal_frames",
    "wal_batches",
    "wal_fsyncs",
    "wal_bytes_written",
    "wal_rotations",
    "wal_queue_depth",
    "wal_queue_depth_peak",
    "wal_submit_full",
    "wal_read_only",
    "fsync_us_sum",
    *(f"fsync_bucket_{n}" for n in range(FSYNC_BUCKETS)),
)
# All of a gateway's cells are about its connections, so all of them are cleared when it dies.
GATEWAY_FIELDS = ("connections", "requests", "streams")
PER_KEY_FIELDS = ("key_requests", "key_streams")

# Per operation (a line of topics.keys.ROUTE_SCOPES): a count per bucket, the sum in microseconds, then one per class
# of status, 1xx to 5xx. Not cleared when a gateway dies: its successor counts on, so that the sums only grow.
OP_BOUNDS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
OP_SUM = len(OP_BOUNDS_S) + 1
OP_CLASSES = OP_SUM + 1
OP_CELLS = 24
OPERATIONS = tuple(ROUTE_SCOPES)

assert OP_CLASSES + 5 <= OP_CELLS
assert len(FSYNC_BOUNDS_US) < FSYNC_BUCKETS
assert len(WATCH_FIELDS) <= WATCH_CELLS
assert len(SHARD_FIELDS) <= SHARD_CELLS
assert len(GATEWAY_FIELDS) <= GATEWAY_CELLS


class Phase(IntEnum):
    STARTING = 0
    READY = 1  # every shard has been ready; stays when one falls back
    DRAINING = 2


class ChildState(IntEnum):
    ABSENT = 0  # not one of the shards that are served
    STARTING = 1  # the process runs but is not ready: a shard replays
    READY = 2
    DOWN = 3  # ended; will be started again
    FAILED = 4  # ended; the supervisor has given up on it
    STOPPING = 5


class Readiness(NamedTuple):
    """What `/v0/ready` answers from."""

    phase: Phase
    progress: float  # of the replay, over all shards
    topics: int
    not_ready: list[int]  # shards that do not serve now


class BadBoard(Exception):
    """The file is not a board of this version."""


class Slot:
    """Named cells. Only the slot's writer may set or add."""

    __slots__ = ("_cells", "_fields", "_first")

    def __init__(self, cells: "memoryview[int]", first: int, fields: Sequence[str]) -> None:
        self._cells = cells
        self._first = first
        self._fields = {name: first + n for n, name in enumerate(fields)}

    def get(self, field: str) -> int:
        return self._cells[self._fields[field]]

    def set(self, field: str, value: int) -> None:
        self._cells[self._fields[field]] = value

    def add(self, field: str, change: int) -> int:
        """Returns the new value; never below zero."""
        cell = self._fields[field]
        value = max(0, self._cells[cell] + change)
        self._cells[cell] = value
        return value

    def values(self) -> dict[str, int]:
        return {name: self._cells[cell] for name, cell in self._fields.items()}


class KeyCells:
    """One count of one key: this gateway's cell, and the same of all gateways. Made once, used by every request."""

    __slots__ = ("_all", "_cells", "_own")

    def __init__(self, board: "Board", gateway: int, key: int, field: str) -> None:
        self._cells = board._cells
        self._own = board.key_cell(gateway, key, field)
        self._all = tuple(board.key_cell(each, key, field) for each in range(board.gateway_count))

    def add(self, change: int) -> None:
        """Never below zero."""
        self._cells[self._own] = max(0, self._cells[self._own] + change)

    def total(self) -> int:
        """Over all gateways; exact inside `locked`."""
        cells = self._cells
        return sum([cells[cell] for cell in self._all])


class Board:
    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._map = mmap.mmap(fd, os.fstat(fd).st_size)
        self._cells: memoryview[int] = memoryview(self._map).cast("Q")
        self.shard_count, self.gateway_count, self.key_count = self._cells[2:5]
        self.started_ms = self._cells[5]
        self._gateway_cells = GATEWAY_CELLS + len(PER_KEY_FIELDS) * self.key_count
        children = self.shard_count + self.gateway_count
        self._shards_at = HEADER_CELLS + children * WATCH_CELLS
        self._gateways_at = self._shards_at + self.shard_count * SHARD_CELLS
        self._times_at = self._gateways_at + self.gateway_count * self._gateway_cells
        self._shards = [self._shard(i) for i in range(self.shard_count)]
        self._gateways = [self._gateway(i) for i in range(self.gateway_count)]
        self._watches = [self._watch(i) for i in range(children)]

    @classmethod
    def create(cls, path: str, *, shards: int, gateways: int, keys: int = 0, started_ms: int = 0) -> "Board":
        """`shards` is one more than the highest index that is served."""
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        return cls._lay_out(fd, shards, gateways, keys, started_ms)

    @classmethod
    def private(cls, served: Sequence[int]) -> "Board":
        """For shards that share one process: in no directory, and without gateways."""
        board = cls._lay_out(os.memfd_create("topics-board"), max(served) + 1, 0, 0, 0)
        for index in served:
            board.watch_shard(index).set("state", ChildState.STARTING)
        return board

    @classmethod
    def _lay_out(cls, fd: int, shards: int, gateways: int, keys: int, started_ms: int) -> "Board":
        cells = HEADER_CELLS + (shards + gateways) * WATCH_CELLS + shards * SHARD_CELLS
        cells += gateways * (GATEWAY_CELLS + len(PER_KEY_FIELDS) * keys + len(OPERATIONS) * OP_CELLS)
        os.write(fd, struct.pack("=6Q", MAGIC, VERSION, shards, gateways, keys, started_ms))
        os.ftruncate(fd, cells * 8)
        return cls(fd)

    @classmethod
    def open(cls, path: str) -> "Board":
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        head = os.read(fd, 16)
        if len(head) < 16 or struct.unpack("=2Q", head) != (MAGIC, VERSION):
            os.close(fd)
            raise BadBoard(f"{os.path.basename(path)} is not a board of version {VERSION}")
        return cls(fd)

    def close(self) -> None:
        self._shards.clear()
        self._gateways.clear()
        self._watches.clear()
        self._cells.release()
        self._map.close()
        os.close(self._fd)

    # --- slots ----------------------------------------------------------------------------------------------------

    def shard(self, index: int) -> Slot:
        return self._shards[index]

    def gateway(self, index: int) -> Slot:
        return self._gateways[index]

    def watch_shard(self, index: int) -> Slot:
        return self._watches[index]

    def watch_gateway(self, index: int) -> Slot:
        return self._watches[self.shard_count + index]

    def key_cell(self, gateway: int, key: int, field: str) -> int:
        """The index, for `add_to_key` and `key_total`, of one key's cell in a gateway's slot."""
        assert 0 <= key < self.key_count
        first = self._gateways_at + gateway * self._gateway_cells + GATEWAY_CELLS
        return first + key * len(PER_KEY_FIELDS) + PER_KEY_FIELDS.index(field)

    def times(self, gateway: int) -> "memoryview[int]":
        """A gateway's times: OP_CELLS for each of OPERATIONS. Release it before the board is closed."""
        length = len(OPERATIONS) * OP_CELLS
        first = self._times_at + gateway * length
        return self._cells[first : first + length]

    def add_to_key(self, gateway: int, key: int, field: str, change: int) -> None:
        cell = self.key_cell(gateway, key, field)
        self._cells[cell] = max(0, self._cells[cell] + change)

    # --- over the instance ----------------------------------------------------------------------------------------

    def total(self, field: str) -> int:
        """The sum over all slots that have the field; exact inside `locked`."""
        return sum(
            slot.get(field)
            for fields, slots in ((SHARD_FIELDS, self._shards), (GATEWAY_FIELDS, self._gateways))
            if field in fields
            for slot in slots
        )

    def all_counted(self) -> bool:
        """Whether every shard that is served has told what it holds, in this life or an earlier one."""
        return all(
            slot.get("counted") or watch.get("state") == ChildState.ABSENT
            for slot, watch in zip(self._shards, self._watches, strict=False)
        )

    def key_total(self, key: int, field: str) -> int:
        return sum(self._cells[self.key_cell(gateway, key, field)] for gateway in range(self.gateway_count))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Exclusive over all processes. No await and no I/O inside: everybody else stands still meanwhile.

        Raises `not_ready` if somebody else does not let go of it."""
        self._lock()
        try:
            yield
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def _lock(self) -> None:
        ends = time.monotonic() + limits.BOARD_LOCK_MS / 1000
        while True:
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > ends:
                    message = "another process of the server holds what this request must be counted by; retry"
                    raise TopicsError(errors.NOT_READY, message, {"retry_after_ms": 1000}) from None
            time.sleep(limits.BOARD_LOCK_RETRY_US / 1e6)

    @property
    def phase(self) -> Phase:
        return Phase(self._cells[6])

    def set_phase(self, phase: Phase) -> None:
        self._cells[6] = phase

    def readiness(self) -> Readiness:
        served = [i for i in range(self.shard_count) if self._watches[i].get("state") != ChildState.ABSENT]
        watches = [self._watches[i] for i in served]
        done = sum(watch.get("replay_progress") for watch in watches)
        return Readiness(
            self.phase,
            done / (PROGRESS_WHOLE * len(served)) if served else 0.0,
            sum(watch.get("topics") for watch in watches),
            [i for i in served if self._watches[i].get("state") != ChildState.READY],
        )

    def clear_gateway(self, index: int) -> None:
        """For the supervisor, when that gateway has ended and before it starts again: its connections are gone.

        Without the lock: nobody else writes these cells now, and whoever adds them up gets no more than was true."""
        first = self._gateways_at + index * self._gateway_cells
        for cell in range(first, first + self._gateway_cells):
            self._cells[cell] = 0

    def _shard(self, index: int) -> Slot:
        return Slot(self._cells, self._shards_at + index * SHARD_CELLS, SHARD_FIELDS)

    def _gateway(self, index: int) -> Slot:
        return Slot(self._cells, self._gateways_at + index * self._gateway_cells, GATEWAY_FIELDS)

    def _watch(self, child: int) -> Slot:
        return Slot(self._cells, HEADER_CELLS + child * WATCH_CELLS, WATCH_FIELDS)
