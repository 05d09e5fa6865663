"""The cold tier: sealed segments in another directory, perhaps a slow one, perhaps one that is away for a while.

    <cold directory>/shard-00/OWNER                            which shard of which data directory this belongs to
                              segments/<id>/seg-<first_seq>.data

Only blocks move. The index of a cold segment stays in the data directory, and its deletes are kept in the snapshot, so
a shard starts, counts, expires, evicts and deletes without the cold directory. Cold files are written once and never
changed; their delete flags are those of the time of the move, and nothing reads them.

Everything here may take arbitrarily long, so it runs in threads: nothing of it belongs to the loop or to a checkpoint.
Reads have a few threads that nothing else uses, and a time limit.

A move is copy, sync (file and names), flip, unlink of the hot file. The flip is the snapshot's commit that names the
segment as cold, see checkpoint.py. A crash before it leaves a stray copy here, which `sweep` removes; one behind it
leaves a stray hot file, which recovery removes.

OWNER keeps two servers from one directory, and an empty mount point from being taken for the real thing. `cold.id` in
the shard's data directory has the same text, and a second line as soon as OWNER is known to be there. From then on
OWNER is never written again: a cold directory without it is not the right one. A crash in between repeats the claim.
"""

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

import trio

from topics import errors, limits
from topics.core.block import BadBlock, Block
from topics.core.chunk import Chunk, DataFile
from topics.errors import TopicsError
from topics.shards import datafile
from topics.shards.cold_files import ColdFiles
from topics.shards.files import File, Files

log = logging.getLogger(__name__)
ID_PATH = "cold.id"
OWNER_PATH = "OWNER"
TITLE = "topics cold 1"
CLAIMED = "claimed"
NOT_SET = "TOPICS_COLD_DIR is not set"

Place = tuple[DataFile, int, int]  # a block: its file, offset and length
Pause = Callable[[int], None]  # is told how many bytes were copied, and may take its time


class ColdUnavailable(Exception):
    """The cold directory cannot be used now; the message says why."""


class ColdIndexLost(Exception):
    """A start needs the cold directory for once; the message says what to do."""


class Unmovable(Exception):
    """A segment that cannot be read as a whole stays where it is: its blocks are judged one by one as they are read."""


def refusal(reason: str) -> TopicsError:
    """What a reader of cold records is told while they cannot be had."""
    return TopicsError(
        errors.NOT_READY,
        f"these records are in the cold directory, which cannot be read now ({reason}); they are not lost. Bring the "
        "directory back that TOPICS_COLD_DIR names, then read again; newer records can be read meanwhile",
        {"reason": errors.COLD_UNAVAILABLE, "retry_after_ms": limits.COLD_RETRY_MIN_MS},
    )


class ColdTier:
    """A shard's part of the cold directory. Its methods block."""

    def __init__(self, hot: Files, cold: ColdFiles) -> None:
        self._hot = hot
        self._cold = cold
        self.readers = trio.CapacityLimiter(limits.COLD_READ_THREADS)
        self.problem = ""  # why it cannot be used, as far as the relocator knows; empty while it can

    # --- whose it is ----------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Make sure that the directory is there and is ours; claim it if it was never used. Raises ColdUnavailable."""
        try:
            owner, claimed = self._own_id()
            found = _read_text(self._cold, OWNER_PATH)
            if found is not None and found.strip() != owner:
                raise ColdUnavailable("it belongs to another data directory, as OWNER in it says")
            if found is None and claimed:
                raise ColdUnavailable("it is not there, or is another one than before: there is no OWNER in it")
            if self._hot.exists(OWNER_PATH):
                raise ColdUnavailable("it is the data directory itself")
            if not claimed:
                self._claim(owner or f"{TITLE} {os.urandom(16).hex()}")
        except OSError as error:
            raise ColdUnavailable(error.strerror or str(error)) from error

    def _own_id(self) -> tuple[str, bool]:
        text = _read_text(self._hot, ID_PATH)
        if text is None:
            return "", False
        lines = text.splitlines()
        if not lines or not lines[0].startswith(TITLE):
            raise ColdUnavailable(f"{ID_PATH} in the data directory does not say which one is ours")
        return lines[0], CLAIMED in lines[1:]

    def _claim(self, owner: str) -> None:
        """Everything anew, also if it was there: a name whose sync failed once is not made durable by another sync."""
        _write_text(self._hot, ID_PATH, f"{owner}\n")
        try:
            self._cold.make_root()
            _write_text(self._cold, OWNER_PATH, f"{owner}\n")
            if self._hot.exists(OWNER_PATH):  # by way of a link: a move would remove what it has copied
                raise ColdUnavailable("it is the data directory itself")
        except (OSError, ColdUnavailable):
            with suppress(OSError):
                self._cold.unlink(OWNER_PATH)
                self._cold.remove_root()
            raise
        _write_text(self._hot, ID_PATH, f"{owner}\n{CLAIMED}\n")

    # --- moving ---------------------------------------------------------------------------------------------------

    def copy(self, info: DataFile, pause: Pause = lambda size: None) -> None:
        """Copy a segment's blocks here, durably. Raises Unmovable or ColdUnavailable; what it leaves then is litter."""
        self.check()
        source = _open_source(self._hot, info)
        try:
            self._store_copy(source, info, pause)
        except OSError as error:
            self._forget_copy(info)
            raise ColdUnavailable(error.strerror or str(error)) from error
        finally:
            source.close()
        self.check()  # a directory that was exchanged meanwhile does not have it

    def _store_copy(self, source: File, info: DataFile, pause: Pause) -> None:
        directory = os.path.dirname(info.path)
        self._cold.make_dir(directory)
        self._cold.unlink(info.path)  # left over from a copy that was cut short
        target = self._cold.create(info.path)
        try:
            for at in range(0, info.size, limits.COLD_COPY_BYTES):
                piece = _read_source(source, at, min(limits.COLD_COPY_BYTES, info.size - at))
                target.write_at(at, [piece])
                pause(len(piece))
            target.sync()
        finally:
            target.close()
        for parent in (directory, os.path.dirname(directory), "."):
            self._cold.sync_dir(parent)

    def _forget_copy(self, info: DataFile) -> None:
        """Empty directories go too, so that one whose name could not be synced is made anew the next time."""
        with suppress(OSError):
            self._cold.unlink(info.path)
            self._cold.remove_dir(os.path.dirname(info.path))
            self._cold.remove_dir("segments")

    def remove(self, paths: Iterable[str]) -> None:
        """Segments of which nothing is live any more, or copies that are not needed. Raises ColdUnavailable."""
        self.check()
        try:
            for path in paths:
                self._cold.unlink(path)
                self._cold.remove_dir(os.path.dirname(path))
        except OSError as error:
            raise ColdUnavailable(error.strerror or str(error)) from error

    def sweep(self, known: set[str]) -> None:
        """Remove what a crash has left: files that no snapshot names. Raises ColdUnavailable."""
        self.check()
        try:
            owners = self._cold.list("segments")
            found = [f"segments/{owner}/{name}" for owner in owners for name in self._cold.list(f"segments/{owner}")]
            for owner in owners:
                self._cold.remove_dir(f"segments/{owner}")
        except OSError as error:
            raise ColdUnavailable(error.strerror or str(error)) from error
        self.remove(path for path in found if path not in known)

    # --- reading --------------------------------------------------------------------------------------------------

    def read_blocks(self, places: Sequence[Place]) -> list[Block | None]:
        """The blocks; None for one that does not check. Raises ColdUnavailable: then nothing can be said of them."""
        blocks: list[Block | None] = []
        file: File | None = None
        last: DataFile | None = None
        try:
            for info, offset, length in places:
                if file is None or info is not last:
                    if file is not None:
                        file.close()
                    file, last = self._open(info), info
                blocks.append(_decode(file.read_at(offset, length), info.seed))
        except OSError as error:
            raise ColdUnavailable(error.strerror or str(error)) from error
        finally:
            if file is not None:
                file.close()
        return blocks

    def read_whole(self, info: DataFile) -> bytes:
        """All bytes of a segment. Raises ColdUnavailable."""
        try:
            file = self._open(info)
            try:
                return file.read_at(0, info.size)
            finally:
                file.close()
        except OSError as error:
            raise ColdUnavailable(error.strerror or str(error)) from error

    def _open(self, info: DataFile) -> File:
        """Another file under this name, or a part of it, says nothing about the records: it was put there by hand."""
        file = self._cold.open(info.path)
        if not _is_file_of(info, file):
            file.close()
            raise ColdUnavailable(f"{info.path} in it is not the file that was put there")
        return file


def read_cold_index(files: Files, info: DataFile, cold: ColdTier | None) -> datafile.Index:
    """The index of a cold segment, which is in the data directory; made anew from the cold blocks if it is damaged."""
    try:
        return datafile.load_index(files, info)
    except (FileNotFoundError, datafile.BadFile) as error:
        log.warning("%s has no usable index (%s); it is made anew from the blocks", info.path, error)
    try:
        if cold is None:
            raise ColdUnavailable(NOT_SET)
        data = cold.read_whole(info)
        files.make_dir(os.path.dirname(info.path))
        return datafile.rebuild_index(files, info, data)
    except ColdUnavailable as error:
        raise ColdIndexLost(
            f"{datafile.index_path(info.path)} is missing or damaged, and the blocks to make it anew from are in the "
            f"cold directory, which cannot be read ({error}). Nothing was changed. Bring the cold directory back, or "
            "restore the index from a backup."
        ) from error


async def read_in_thread(cold: ColdTier | None, places: Sequence[Place]) -> list[Block | None]:
    """`ColdTier.read_blocks`, for the loop. Raises ColdUnavailable also if it takes too long."""
    if cold is None:
        raise ColdUnavailable(NOT_SET)
    with trio.move_on_after(limits.COLD_READ_MS_MAX / 1000):
        return await trio.to_thread.run_sync(cold.read_blocks, places, limiter=cold.readers, abandon_on_cancel=True)
    raise ColdUnavailable(f"it did not answer within {limits.COLD_READ_MS_MAX / 1000:.0f} s")


def place_of(chunk: Chunk) -> Place:
    assert chunk.file is not None
    return chunk.file, chunk.offset, chunk.length


def _decode(data: bytes, seed: int) -> Block | None:
    try:
        return datafile.decode_frame(data, seed)
    except BadBlock:
        return None


def _open_source(hot: Files, info: DataFile) -> File:
    try:
        source = hot.open(info.path)
    except OSError as error:
        raise Unmovable(f"{info.path}: {error.strerror}") from error
    try:
        if _is_file_of(info, source):
            return source
    except OSError as error:
        source.close()
        raise Unmovable(f"{info.path}: {error.strerror}") from error
    source.close()
    raise Unmovable(f"{info.path} is damaged")


def _read_source(source: File, at: int, size: int) -> bytes:
    try:
        return source.read_at(at, size)
    except OSError as error:
        raise Unmovable(f"a segment cannot be read: {error.strerror}") from error


def _is_file_of(info: DataFile, file: File) -> bool:
    header = datafile.decode_data_header(file.read_at(0, datafile.HEADER_BYTES))
    return header is not None and (header.file_id, header.seed) == (info.id, info.seed) and file.size() == info.size


def _read_text(files: Files, path: str) -> str | None:
    try:
        file = files.open(path)
    except FileNotFoundError:
        return None
    try:
        return file.read_at(0, limits.COLD_MARK_BYTES_MAX).decode("utf-8", "replace")
    finally:
        file.close()


def _write_text(files: Files, path: str, text: str) -> None:
    tmp = f"{path}.tmp"
    files.unlink(tmp)
    file = files.create(tmp)
    try:
        file.write_at(0, [text.encode()])
        file.sync()
    finally:
        file.close()
    files.rename(tmp, path)
    files.sync_dir(".")
