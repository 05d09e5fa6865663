"""The hash slots that a shard has ever used.

`slots.used` in the shard's directory is a bitmap of 1,024 bits. A bit is set and synced before the first topic in
that slot is logged, so the supervisor, which deals slots at start, never moves one that holds data.
"""

from topics.ids import SLOTS as COUNT
from topics.shards.files import Files

PATH = "slots.used"


class UsedSlots:
    """The bitmap. `mark` returns only when the marks are durable; a crash leaves at worst a mark too many."""

    def __init__(self, files: Files) -> None:
        self._files = files
        if not files.exists(PATH):
            self._create()
        self._file = files.open(PATH)
        bits = self._file.read_at(0, COUNT // 8).ljust(COUNT // 8, b"\0")
        self._bits = bytearray(bits)

    def _create(self) -> None:
        tmp = PATH + ".tmp"
        self._files.unlink(tmp)
        file = self._files.create(tmp)
        file.write_at(0, [bytes(COUNT // 8)])
        file.sync()
        file.close()
        self._files.rename(tmp, PATH)
        self._files.sync_dir(".")

    def all(self) -> set[int]:
        return {slot for slot in range(COUNT) if self._bits[slot // 8] >> slot % 8 & 1}

    def mark(self, slots: set[int]) -> None:
        for slot in slots:
            self._bits[slot // 8] |= 1 << slot % 8
        self._file.write_at(0, [bytes(self._bits)])
        self._file.sync()

    def close(self) -> None:
        self._file.close()
