"""Checking a shard's log: every frame of every file, whether the snapshot covers it or not.

The verdict on what is not covered is recovery's own (`walscan.read_log`). Beyond that this knows of damage that a
start has no need to know: bytes that a checkpoint covers, padding, and frames that something else vouches for. What
vouches is the snapshot (it never runs ahead of the log), the header of a later log file (one is begun only when all
before it is synced) and the head register (see verify.py).

Memory: one log file at a time, like a start.
"""

from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

from topics.core.events import (
    Appended,
    BadEvent,
    CreatedAndAppended,
    Event,
    Marked,
    RangeLost,
    Recovered,
    TopicCreated,
    TopicRemoved,
    TopicUpdated,
    WentIdle,
    decode_event,
)
from topics.core.topic import Topic
from topics.shards import wal, walscan
from topics.shards.files import Files
from topics.shards.findings import CORRUPT, MISSING, TORN, CannotCheck, Finding, Note, Tally, unreadable
from topics.shards.walscan import Found, Scan

COVERED = "A checkpoint covers these frames, so nothing is lost. Look at the disk: it changes bytes."
TELLS = (
    "The next start keeps a copy in quarantine, and readers who cross the gap get a tombstone with reason corrupt. "
    "To have the records back, restore this shard from a backup."
)


class KnownTopic:
    """What the snapshot and the log say about a topic, as far as other files have to agree with it."""

    __slots__ = ("applied_lsn", "cell", "derived", "durability", "head_seq", "name")

    def __init__(self, topic: Topic) -> None:
        self.name = topic.name
        self.cell = topic.cell
        self.head_seq = topic.head_seq
        self.durability = topic.config.durability
        self.derived = topic.derived is not None  # its copies are not in the log
        self.applied_lsn = topic.applied_lsn


class _FileFacts(NamedTuple):
    """One log file, without its frames."""

    number: int
    first_lsn: int | None  # as its header says; None if that does not check
    last_lsn: int  # of its frames; 0 if it has none
    end: int  # of its last frame
    tail: bool  # something like the next frame stands behind it


class LogCheck:
    def __init__(self, files: Files, cut_lsn: int, topics: dict[int, KnownTopic], tally: Tally) -> None:
        self._files = files
        self._cut_lsn = cut_lsn
        self._topics = topics  # brought up to date by the log
        self._tally = tally
        self._told: set[int] = set()  # files that were reported as a whole
        self._facts: list[_FileFacts] = []
        self._unread = False  # a file that the disk does not give: no verdict then
        self.damaged = False

    def run(self, note: Note) -> Iterator[Finding]:
        """Every frame, and the verdict on the log as a whole."""
        for finding in chain(self.frames_only(note), self._judge()):
            self.damaged = self.damaged or finding.damage
            yield finding

    def frames_only(self, note: Note) -> Iterator[Finding]:
        """Every frame of every file. All there is to say when the snapshot that the log follows is gone."""
        for number in walscan.list_files(self._files):
            path = wal.file_path(number)
            try:
                data = walscan.load(self._files, number)
                scan = walscan.scan_file(data)
            except wal.BadLog as error:
                raise CannotCheck(f"{path}: {error}") from None
            except OSError as error:
                self._unread = True
                yield unreadable(path, error)
                continue
            self._tally.files += 1
            self._tally.bytes += len(data)
            self._tally.frames += len(scan.frames)
            yield from self._file(number, data, scan)
            note(len(data))

    # --- one file -------------------------------------------------------------------------------------------------

    def _file(self, number: int, data: bytes, scan: Scan) -> Iterator[Finding]:
        path, header = wal.file_path(number), wal.decode_file_header(data)
        frames = scan.frames
        if scan.unreadable:
            self._told.add(number)
            todo = COVERED if self._is_covered(number) else TELLS
            yield Finding(CORRUPT, path, 0, len(data), "neither its header nor a single frame checks", todo)
        elif header is None:
            yield Finding(
                CORRUPT, path, 0, wal.HEADER_BYTES, "the header does not check; the frames do",
                "Nothing is lost. Look at the disk: it changes bytes.",
            )  # fmt: skip
        first_lsn = header[1] if header is not None else None
        yield from self._covered_gaps(path, first_lsn, frames)
        for found in frames:
            start = found.offset + wal.FRAME_BYTES + len(found.body)
            if any(data[start : found.end]) or found.end > len(data):
                yield Finding(
                    CORRUPT, path, start, found.end, f"the padding of frame {found.lsn} is not as written",
                    "Nothing reads these bytes, so nothing is lost. Look at the disk: it changes bytes.",
                )  # fmt: skip
        end = frames[-1].end if frames else wal.HEADER_BYTES
        last_lsn = frames[-1].lsn if frames else 0
        tail = False
        if first_lsn is not None:
            expected = (last_lsn or first_lsn - 1) + 1
            tail = _resembles_frame(data, end, first_lsn, expected)
            if tail and expected <= self._cut_lsn:
                tail = False
                yield Finding(CORRUPT, path, end, None, f"bad bytes in the place of frame {expected}", COVERED)
        self._facts.append(_FileFacts(number, first_lsn, last_lsn, end, tail))

    def _is_covered(self, number: int) -> bool:
        """Whether the snapshot has all that an unreadable file had: the next one says with which frame it begins."""
        for later in (other for other in walscan.list_files(self._files) if other > number):
            header = wal.decode_file_header(walscan.load(self._files, later))
            if header is not None:
                return header[1] <= self._cut_lsn + 1
        return False

    def _covered_gaps(self, path: str, first_lsn: int | None, frames: list[Found]) -> Iterator[Finding]:
        """Gaps between the frames of a file that the snapshot covers: of the others `read_log` tells."""
        ends = [(wal.HEADER_BYTES, first_lsn - 1)] if first_lsn is not None else []
        ends += [(found.end, found.lsn) for found in frames]
        starts = frames if first_lsn is not None else frames[1:]
        for (end, lsn), found in zip(ends, starts, strict=False):
            if lsn + 1 < found.lsn <= self._cut_lsn + 1:
                what = f"bad bytes in the place of {_frames(lsn + 1, found.lsn - 1)}"
                yield Finding(CORRUPT, path, end, found.offset, what, COVERED)

    # --- the whole log --------------------------------------------------------------------------------------------

    def _judge(self) -> Iterator[Finding]:
        if self._unread:
            return
        vouched = max((topic.applied_lsn for topic in self._topics.values()), default=0)
        report = walscan.WalReport(self._cut_lsn, vouched)
        for found in walscan.read_log(self._files, report):
            yield from self._event(found)
        for damage in report.damage:
            if damage.file not in self._told or damage.end == damage.offset:
                yield self._damage(damage, report.last_lsn)
        yield from self._torn(report)

    def _event(self, found: Found) -> Iterator[Finding]:
        try:
            self._learn(decode_event(found.kind, found.body), found.lsn)
        except BadEvent as error:
            yield Finding(
                CORRUPT, wal.DIRECTORY, None, None, f"frame {found.lsn} checks, but {error}",
                "No start gets past it. Use the version of topics that wrote it, or restore this shard from a backup.",
            )  # fmt: skip

    def _damage(self, damage: walscan.Damage, last_lsn: int) -> Finding:
        path, frames = wal.file_path(damage.file), _frames(damage.first_lsn, damage.last_lsn)
        if damage.first_lsn > last_lsn:
            frames = f"frame {damage.first_lsn} and what follows"
        if damage.end == damage.offset and damage.first_lsn > last_lsn:
            what = f"the newest log file or its end is gone: it ends with frame {last_lsn}, and had been synced further"
            return Finding(MISSING, path, None, None, what, TELLS)
        if damage.end == damage.offset:
            there = damage.file in {facts.number for facts in self._facts}
            what = (
                f"the log lacks {frames}, which had been synced" if there else f"the file is gone, and {frames} with it"
            )
            return Finding(MISSING, path, None, None, what, TELLS)
        what = f"bad bytes in the place of {frames}, which had been synced"
        return Finding(CORRUPT, path, damage.offset, damage.end, what, TELLS)

    def _torn(self, report: walscan.WalReport) -> Iterator[Finding]:
        """How a log ends that has lost nothing: as it was written, or torn."""
        if report.cut is None:
            return
        last, newest = report.last_lsn, self._facts[-1]
        number, offset = report.cut
        dropped = sum(facts.last_lsn > last for facts in self._facts)
        if dropped or (newest.tail and newest.number == number):
            yield Finding(
                TORN, wal.file_path(number), offset, None,
                f"the log was cut off behind frame {last}, in the middle of a write",
                "Usual after a crash: nothing that was known to be durable is in it. The next start cuts it off.",
            )  # fmt: skip

    # --- what the log says about the topics -----------------------------------------------------------------------

    def _learn(self, event: Event, lsn: int) -> None:
        if isinstance(event, CreatedAndAppended):
            self._learn(event.created, lsn)
            self._learn(event.appended, lsn)
            return
        if isinstance(event, TopicCreated):
            topic = Topic(event.topic_id, event.name, event.epoch, event.config)
            topic.cell = event.cell
            self._topics.setdefault(event.topic_id, KnownTopic(topic))
            return
        if isinstance(event, Marked):
            for mark in event.marks:
                if (marked := self._topics.get(mark.topic_id)) is not None and lsn > marked.applied_lsn:
                    marked.head_seq = max(marked.head_seq, mark.dest_seq)
                    marked.derived = mark.generation > 0
            return
        if isinstance(event, Recovered):
            for loss in event.losses:
                self._learn(loss, lsn)
            for topic_id in event.removed:
                self._topics.pop(topic_id, None)
            return
        known = self._topics.get(event.topic_id) if not isinstance(event, WentIdle) else None
        if known is None or lsn <= known.applied_lsn:
            return
        if isinstance(event, Appended):
            known.head_seq = max(known.head_seq, event.first_seq + event.count - 1)
        elif isinstance(event, RangeLost):
            known.head_seq = max(known.head_seq, event.last)
        elif isinstance(event, TopicUpdated):
            known.head_seq = max(known.head_seq, event.head_seq)
            known.durability = event.config.durability
        elif isinstance(event, TopicRemoved):
            del self._topics[event.topic_id]


def _resembles_frame(data: bytes, at: int, first_lsn: int, expected: int) -> bool:
    """Whether a frame that does not check was written at `at`, rather than what an older use of the file left there.

    Old frames have lsns below those of this file; the next one has the expected lsn.
    """
    if at + wal.FRAME_BYTES > len(data):  # no file ends in the middle of a frame by itself
        return data.startswith(wal.FRAME_MAGIC, at)
    lsn, _, _ = wal.FRAME_REST.unpack_from(data, at + wal.FRAME_HEAD.size)
    return bool(lsn == expected or (lsn >= first_lsn and data.startswith(wal.FRAME_MAGIC, at)))


def _frames(first: int, last: int) -> str:
    return f"frame {first}" if first == last else f"frames {first} to {last}"
