"""Named failpoints: steps of the storage that fail on purpose. For tests only; a server that is in use has none.

    TOPICS_FAILPOINTS="wal.sync=error:EIO@3; segment.write=pause:50*2"

is a list of `name=action`, separated by `;`. `*N` behind an action means N times instead of every time, `@N` that the
first N times are let pass; so the log's fourth sync fails here, and every later one. This module reads the text;
`topics/shards/failing_files.py` makes it happen. Without failpoints that wrapper is not there, so they cost nothing.
"""

import errno
import re
from typing import NamedTuple

NAMES = {
    "wal.prepare": "a log file that has no number yet, or a spare, is written or synced",
    "wal.rotate": "a prepared file gets its number",
    "wal.write": "frames are written",
    "wal.sync": "the log is synced",
    "wal.retire": "a log file that is no longer needed goes, or becomes a spare",
    "segment.write": "blocks of a large topic, or their index, are written",
    "segment.sync": "and synced",
    "pack.write": "blocks of small topics, or their index, are written",
    "pack.sync": "and synced",
    "flags.write": "delete flags are written",
    "flags.sync": "and synced",
    "snapshot.write": "a checkpoint is written",
    "snapshot.sync": "and synced",
    "snapshot.rename": "a rewritten snapshot gets its name",
    "slots.write": "slots are marked as used",
    "slots.sync": "and the marks synced",
    "dir.sync": "a directory is synced",
    "truncate": "a file is cut",
    "unlink": "any other file is removed",
    "cold.write": "a segment is written to the cold directory",
    "cold.sync": "and synced",
    "cold.read": "a file in the cold directory is opened",
    "cold.unlink": "a file in the cold directory is removed",
}
ACTIONS = "error:ERRNO, kill, pause:MS, or at a .write also tear"
_SPEC = re.compile(r"([a-z.]+)=(error:([A-Z0-9]+)|kill|tear|pause:([0-9]{1,6}))(?:\*([0-9]{1,9}))?(?:@([0-9]{1,9}))?")


class BadFailpoint(ValueError):
    """The text cannot be used; the message says which part and what is allowed."""


class Failpoint(NamedTuple):
    name: str
    action: str  # error, kill, pause or tear: write the first half, then kill
    argument: int  # the error number, or the milliseconds
    times: int | None  # None is every time
    skip: int


def parse(text: str) -> list[Failpoint]:
    return [_parse(part.strip()) for part in text.split(";") if part.strip()]


def _parse(part: str) -> Failpoint:
    match = _SPEC.fullmatch(part)
    if match is None:
        raise BadFailpoint(f"failpoint {part!r} must be NAME=ACTION[*COUNT][@SKIP]; an action is {ACTIONS}")
    name, action, symbol, pause, count, skip = match.groups()
    if name not in NAMES:
        raise BadFailpoint(f"failpoint {name!r} is not known; there are {', '.join(NAMES)}")
    if action == "tear" and not name.endswith(".write"):
        raise BadFailpoint(f"failpoint {part!r}: only a write can be torn")
    number = getattr(errno, symbol, None) if symbol else int(pause or 0)
    if not isinstance(number, int) or (symbol and number not in errno.errorcode):
        raise BadFailpoint(f"failpoint {part!r}: {symbol} is not the name of an error")
    kind = action.partition(":")[0]
    return Failpoint(name, kind, number, int(count) if count else None, int(skip or 0))
