"""What a check of a data directory finds, in words for the person who has to decide what to do."""

from collections.abc import Callable

import msgspec

from topics.shards.files import Files

TORN = "torn tail"
CORRUPT = "corrupt"
MISSING = "missing"
QUARANTINED = "quarantined"

IN_COLD = "cold:"  # in front of the name of a file in the cold directory

Note = Callable[[int], None]  # is told how many bytes were gone through


class Finding(msgspec.Struct, frozen=True):
    """One row of the table. A torn tail is no damage: a crash leaves it, and nothing that was durable is in it."""

    kind: str
    file: str
    offset: int | None
    end: int | None  # of the bytes concerned; None where that says nothing
    what: str
    todo: str

    @property
    def damage(self) -> bool:
        return self.kind != TORN

    def below(self, directory: str, cold: str = "") -> "Finding":
        """With its place: the shard's directory, or its part of the cold one."""
        if self.file.startswith(IN_COLD):
            return msgspec.structs.replace(self, file=f"{cold}/{self.file.removeprefix(IN_COLD)}")
        return msgspec.structs.replace(self, file=f"{directory}/{self.file}")


class Tally(msgspec.Struct):
    """What was gone through."""

    shards: int = 0
    files: int = 0
    bytes: int = 0
    frames: int = 0
    checkpoints: int = 0
    topics: int = 0
    blocks: int = 0
    records: int = 0
    cold_segments: int = 0  # that the snapshots name
    leftovers: int = 0  # files of a step that a crash cut short; the next start removes or replaces them


class CannotCheck(Exception):
    """Nothing can be said about the directory; the message says why."""


def read_whole(files: Files, path: str) -> bytes:
    file = files.open(path)
    try:
        return file.read_at(0, file.size())
    finally:
        file.close()


def unreadable(path: str, error: OSError) -> Finding:
    """The disk does not give the bytes; what cannot be looked at for want of rights is not a finding."""
    if isinstance(error, PermissionError):
        raise CannotCheck(f"{path} may not be read by this user") from None
    return Finding(
        CORRUPT, path, None, None, f"the disk does not give its bytes: {error.strerror}",
        "Look at the kernel's log and the disk. Copy what can be read elsewhere before anything else.",
    )  # fmt: skip
