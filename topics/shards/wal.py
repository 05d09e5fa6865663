"""The write-ahead log: format and writer. `walscan.py` reads it back.

Files are `wal/<number>.wal`, little endian, numbers ascending. File header, 64 bytes:

    off  size  field
      0     8  magic "TOPICSWL"
      8     4  version
     12     4  reserved
     16     8  seed of every checksum in this file
     24     8  lsn of the first frame
     32    24  reserved
     56     8  XXH3-64 of bytes 0..56

Frames follow, each at a multiple of 8 bytes:

      0     4  magic "TWF1"
      4     4  length of the body
      8     8  XXH3-64 of bytes 16..40 and the body, with the file's seed
     16     8  lsn: 1, 2, 3 … without gaps over all files
     24     8  synced: every frame up to this lsn was known durable when this one was written
     32     8  kind u8 (see core/events.py), 7 bytes reserved
     40     …  body, padded with zeros to a multiple of 8

A file is filled with zeros, or with the stale frames of an older file (another seed, so they never check), before it is
used: an fdatasync then has no metadata to write. What follows the last frame is therefore zeros or stale bytes.
The header is durable before the file gets its name, and a file is left for the next one only when all its frames are
synced: a named file without a readable header is damaged, never torn.

`synced` tells a torn tail from damage: a bad frame that a later good frame calls synced was on disk once.
"""

import errno
import os
import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

import xxhash

from topics import limits
from topics.core.events import Part
from topics.shards.files import File, Files

DIRECTORY = "wal"
FILE_MAGIC = b"TOPICSWL"
FRAME_MAGIC = b"TWF1"
VERSION = 1
FILE_HEADER = struct.Struct("<8sIIQQ24sQ")
FRAME_HEAD = struct.Struct("<4sIQ")
FRAME_REST = struct.Struct("<QQB7x")
HEADER_BYTES = FILE_HEADER.size
FRAME_BYTES = FRAME_HEAD.size + FRAME_REST.size
_PADDING = [b"\0" * n for n in range(8)]

assert HEADER_BYTES == 64
assert FRAME_BYTES == 40


class BadLog(Exception):
    """The log was written by a version that this one cannot read; the message says so. Nothing was changed."""


class Frame(NamedTuple):
    """An event on its way into the log."""

    lsn: int
    kind: int
    body: Sequence[Part]
    size: int
    slots: tuple[int, ...]  # hash slots to mark used before this frame is written


def file_path(number: int) -> str:
    return f"{DIRECTORY}/{number:010d}.wal"


def encode_file_header(seed: int, first_lsn: int) -> bytes:
    head = FILE_HEADER.pack(FILE_MAGIC, VERSION, 0, seed, first_lsn, bytes(24), 0)[:56]
    return head + struct.pack("<Q", xxhash.xxh3_64_intdigest(head))


def decode_file_header(data: bytes) -> tuple[int, int] | None:
    """(seed, first lsn), or None if this is not the start of a WAL file. BadLog if it is one of another version."""
    if len(data) < HEADER_BYTES:
        return None
    magic, version, _, seed, first_lsn, _, check = FILE_HEADER.unpack_from(data)
    if magic != FILE_MAGIC or xxhash.xxh3_64_intdigest(data[:56]) != check:
        return None
    if version != VERSION:
        raise BadLog(f"the log has format version {version}, this program reads version {VERSION}; nothing was changed")
    return seed, first_lsn


def encode_frame(frame: Frame, synced: int, seed: int) -> list[Part]:
    rest = FRAME_REST.pack(frame.lsn, synced, frame.kind)
    body = frame.body
    if len(body) == 1 or frame.size < 4096:
        joined = b"".join(body)
        check = xxhash.xxh3_64_intdigest(rest + joined, seed)
        return [FRAME_HEAD.pack(FRAME_MAGIC, len(joined), check) + rest + joined + _PADDING[-len(joined) % 8]]
    digest = xxhash.xxh3_64(rest, seed)
    for part in body:
        digest.update(part)
    size = sum(map(len, body))
    return [FRAME_HEAD.pack(FRAME_MAGIC, size, digest.intdigest()) + rest, *body, _PADDING[-size % 8]]


class WalWriter:
    """Appends groups of frames. Not thread-safe: one committer owns it.

    Any OSError out of `write` or `sync` is final: what the file holds is unknown, and the caller must stop writing
    and restart from disk.
    """

    def __init__(
        self, files: Files, *, next_lsn: int, next_number: int, file_bytes: int = limits.WAL_FILE_BYTES
    ) -> None:
        self._files = files
        self._file_bytes = file_bytes
        self._number = next_number
        self.synced_lsn = next_lsn - 1
        self.written_lsn = next_lsn - 1
        self.bytes_total = 0
        self.rotations = 0
        self.sealed: list[tuple[int, int]] = []  # (number, last lsn) of files that are full
        self.leave_file = False  # go on in another one as soon as that can be, so that this one can go
        files.make_dir(DIRECTORY)
        files.sync_dir(".")  # or a power loss could take the directory with everything in it
        self._file = self._new_file(next_lsn, min(limits.WAL_FIRST_FILE_BYTES, file_bytes))

    @property
    def number(self) -> int:
        """The file that is being written."""
        return self._number - 1

    @property
    def end_offset(self) -> int:
        """Where in it the next frame goes."""
        return self._position

    @property
    def room_left(self) -> int:
        """What the file still holds of the disk for frames to come."""
        return max(0, self._prepared - self._position)

    @property
    def grown(self) -> bool:
        """The file takes more of the disk than was set aside for it, and not a little."""
        return self._position > max(self._prepared, limits.WAL_FIRST_FILE_BYTES)

    def write(self, frames: Sequence[Frame]) -> None:
        """Write frames after one another; they are durable only after `sync`."""
        parts: list[Part] = []
        for frame in frames:
            parts += encode_frame(frame, self.synced_lsn, self._seed)
        size = sum(map(len, parts))
        if self._position + size > self._prepared and self._position > HEADER_BYTES and self._may_rotate():
            self._rotate(frames[0].lsn)
            parts = [part for frame in frames for part in encode_frame(frame, self.synced_lsn, self._seed)]
        self._file.write_at(self._position, parts)
        self._position += size
        self.bytes_total += size
        self.written_lsn = frames[-1].lsn

    def sync(self) -> None:
        self._file.sync()
        self.synced_lsn = self.written_lsn

    def close(self) -> None:
        self._file.close()

    def _may_rotate(self) -> bool:
        """A spare is ready, or the file has its full size. Never with unsynced frames in the old file."""
        wanted = self.leave_file or self._position >= self._file_bytes or bool(spares(self._files))
        return wanted and self.synced_lsn == self.written_lsn

    def _rotate(self, first_lsn: int) -> None:
        self.leave_file = False
        self.sealed.append((self.number, first_lsn - 1))
        self._file.close()
        self._file = self._new_file(first_lsn, 0)
        self.rotations += 1

    def _new_file(self, first_lsn: int, fill: int) -> File:
        """A file ready for its first frame. The name appears only when the header is durable."""
        number = self._number
        self._number += 1
        self._seed = int.from_bytes(os.urandom(8), "little")
        ready = spares(self._files)
        source = f"{DIRECTORY}/{ready[0]}" if ready else f"{DIRECTORY}/new.tmp"
        if ready:
            file = self._files.open(source)
        else:
            self._files.unlink(source)
            file = self._files.create(source)
            if fill:
                _fill(file, fill)
        file.write_at(0, [encode_file_header(self._seed, first_lsn)])
        file.sync()
        self._files.rename(source, file_path(number))
        self._files.sync_dir(DIRECTORY)
        self._prepared = file.size()
        self._position = HEADER_BYTES
        return file


def _fill(file: File, size: int) -> None:
    """Zeros ahead of need; a full disk must not keep a shard from starting, so that it can at least be read."""
    try:
        file.write_at(0, [bytes(size)])
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        file.truncate(0)


def spares(files: Files) -> list[str]:
    return [name for name in files.list(DIRECTORY) if name.startswith("spare-") and not name.endswith(".tmp")]


def prepare_spare(files: Files, size: int = limits.WAL_FILE_BYTES, *, go_on: Callable[[], bool] = lambda: True) -> None:
    """Fill a file with zeros ahead of need, so that the committer finds it ready. Runs beside the committer, and syncs
    little at a time: 64 MiB on their way to the disk would hold up every sync of every log for many milliseconds."""
    if spares(files) or files.free_bytes() < size + limits.SPACE_SHORT_BYTES:
        return  # the last of the room is for records
    tmp = f"{DIRECTORY}/spare-0.tmp"
    files.unlink(tmp)
    file = files.create(tmp)
    try:
        step = limits.MIB
        for offset in range(0, size, step):
            if not go_on():
                files.unlink(tmp)
                return
            file.write_at(offset, [bytes(min(step, size - offset))])
            file.sync()
    except OSError:
        files.unlink(tmp)  # a full disk needs the room more than the log needs a spare
        raise
    finally:
        file.close()
    files.rename(tmp, f"{DIRECTORY}/spare-0")


def retire(files: Files, number: int) -> None:
    """A file whose frames are all covered by the snapshot becomes the spare, or goes.

    A crash may bring the name back, in any order with others: the reader skips frames that the snapshot covers.
    """
    huge = _size(files, number) > 2 * limits.WAL_FILE_BYTES  # one huge group must not keep its room
    if spares(files) or huge or files.free_bytes() < limits.SPACE_SHORT_BYTES:
        files.unlink(file_path(number))
    else:
        files.rename(file_path(number), f"{DIRECTORY}/spare-{number}")


def _size(files: Files, number: int) -> int:
    file = files.open(file_path(number))
    try:
        return file.size()
    finally:
        file.close()
