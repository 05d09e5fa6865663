"""What a checkpoint states about cold segments: which have moved, and which of their records are deleted.

A cold file is never written to. So its deletes stand in the snapshot for as long as it is there: at first those that
the hot file's flags show, then those that come. Each is in the commit that also has the reason, the topic's entry.
"""

from collections import defaultdict
from collections.abc import Iterable

from topics.core.bits import runs
from topics.core.chunk import DataFile
from topics.core.ranges import SeqRanges
from topics.shards import datafile
from topics.shards.files import Files

Mask = tuple[int, int]  # first seq of a block, and which of its records are dead


class ColdDeletes:
    """The deletes of one checkpoint in files that are cold, or are so from now on."""

    def __init__(self) -> None:
        self._masks: dict[DataFile, list[Mask]] = defaultdict(list)

    def note(self, info: DataFile, first_seq: int, dead: int) -> None:
        self._masks[info].append((first_seq, dead))

    def move(self, files: Files, info: DataFile) -> DataFile:
        """The file as a cold one. Its flags are read from the hot file, which is still there. Raises OSError."""
        handle = files.open(info.path)
        try:
            index = datafile.read_index(files, info)
            shown = [
                (chunk.first_seq, dead)
                for _, chunk in datafile.chunks_of(info, index)
                if (dead := datafile.read_flags(handle, chunk))
            ]
        finally:
            handle.close()
        return _cold(info, shown + self._masks.get(info, []))

    def changed(self) -> Iterable[DataFile]:
        """The files that were cold before, with what was deleted since."""
        return [_cold(info, masks) for info, masks in self._masks.items() if info.cold]


def _cold(info: DataFile, masks: list[Mask]) -> DataFile:
    deleted = SeqRanges.decode(info.deleted) if info.deleted else SeqRanges()
    for first_seq, dead in masks:
        for low, high in runs(dead):
            deleted.add(first_seq + low, first_seq + high - 1)
    twin = DataFile(info.id, info.kind, info.path, info.seed, info.topic_id)
    twin.size, twin.cold, twin.deleted = info.size, True, deleted.encode()
    return twin
