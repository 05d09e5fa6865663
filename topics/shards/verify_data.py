"""Checking one data file: header, every block, every delete flag, and the index twin against the blocks.

Memory: one block at a time, and the index. Without an index the file is read as a whole, as a start would do to make
a new one.
"""

from collections.abc import Iterator
from typing import NamedTuple

from topics.core.block import BadBlock, Block
from topics.core.blockform import DELETED, BlockHead, check_frame, decode_stored
from topics.core.chunk import DataFile
from topics.shards import datafile
from topics.shards.datafile import HEADER_BYTES, Entry, Index, entry_flags
from topics.shards.files import File, Files
from topics.shards.findings import CORRUPT, IN_COLD, MISSING, Finding, Note, Tally, read_whole, unreadable
from topics.shards.jobcolumns import NOTHING

LOST = "Readers who cross these records get a tombstone with reason corrupt. To have them back, restore from a backup."
REFUSED = "Readers of these records are refused until the file is back as it was; nothing is given up for lost."
REBUILT = "Nothing is lost: the next start makes a new index from the blocks."
FLAG_VALUES = bytes((0, DELETED))


class _Span(NamedTuple):
    """Where a block stands; `entry` is what the index says about it, and where its records are in the index."""

    offset: int
    end: int
    topic_id: int
    first_seq: int
    last_seq: int
    entry: Entry | None = None
    at: int = 0


class _Run:
    """Bad blocks of one topic that stand next to one another: one row, however many there are."""

    def __init__(self, span: _Span) -> None:
        self.first = self.last = span
        self.blocks = 1

    def takes(self, span: _Span) -> bool:
        if span.offset != self.last.end or span.topic_id != self.first.topic_id:
            return False
        self.last = span
        self.blocks += 1
        return True

    def finding(self, path: str) -> Finding:
        first, last = self.first, self.last
        blocks = "a block" if self.blocks == 1 else f"{self.blocks} blocks"
        what = f"{blocks} of topic {first.topic_id}, seqs {first.first_seq} to {last.last_seq}, not as written"
        return Finding(CORRUPT, path, first.offset, last.end, what, LOST)


class DataFileCheck:
    def __init__(self, files: Files, info: DataFile, tally: Tally, cold: Files | None = None) -> None:
        """The blocks of a cold segment are in `cold`, its index is in `files`."""
        self._files = files
        self._blocks_in = files if cold is None else cold
        self._info = info
        self._name = info.path if cold is None else f"{IN_COLD}{info.path}"  # for findings
        self._lost = LOST if cold is None else REFUSED
        self._tally = tally

    def run(self, note: Note) -> Iterator[Finding]:
        path = self._name
        try:
            handle = self._blocks_in.open(self._info.path)
        except FileNotFoundError:
            whose = f"of topic {self._info.topic_id}" if self._info.topic_id else "of several small topics"
            what = f"the snapshot names this file {whose}, and it is not there"
            yield Finding(MISSING, path, None, None, what, self._lost)
            return
        except OSError as error:
            yield unreadable(path, error)
            return
        try:
            yield from self._check(handle, note)
        except OSError as error:
            yield unreadable(path, error)
        finally:
            handle.close()

    def _check(self, handle: File, note: Note) -> Iterator[Finding]:
        size = handle.size()
        self._tally.files += 1
        self._tally.bytes += size
        yield from self._header(handle.read_at(0, HEADER_BYTES))
        yield from self._size(size)
        index, problem = self._index(note)
        if problem is not None:
            yield problem
        spans = _indexed(index) if index is not None else self._walked()
        yield from self._blocks(handle, spans, min(size, self._info.size), index, note)

    def _header(self, data: bytes) -> Iterator[Finding]:
        info, header = self._info, datafile.decode_data_header(data)
        wanted = datafile.DataHeader(info.kind, info.seed, info.id, info.topic_id)
        if header != wanted and len(data) == HEADER_BYTES:
            what = "the header does not check" if header is None else "the header is another file's"
            todo = "Nothing is lost: the snapshot says the same. Look at the disk: it changes bytes."
            yield Finding(CORRUPT, self._name, 0, HEADER_BYTES, what, REFUSED if info.cold else todo)

    def _size(self, size: int) -> Iterator[Finding]:
        info = self._info
        if size < info.size:
            what = f"the last {info.size - size} bytes are not there"
            yield Finding(MISSING, self._name, size, info.size, what, self._lost)
        elif size > info.size:
            what = f"{size - info.size} bytes that nobody wrote stand at the end"
            todo = "Nothing reads them, so nothing is lost."
            yield Finding(CORRUPT, self._name, info.size, size, what, REFUSED if info.cold else todo)

    def _index(self, note: Note) -> tuple[Index | None, Finding | None]:
        path = datafile.index_path(self._info.path)
        try:
            data = read_whole(self._files, path)
            self._tally.files += 1
            self._tally.bytes += len(data)
            note(len(data))
            return datafile.decode_index(data, self._info.id), None
        except FileNotFoundError:
            return None, Finding(MISSING, path, None, None, "the index of a data file is not there", REBUILT)
        except datafile.BadFile as error:
            return None, Finding(CORRUPT, path, None, None, str(error), REBUILT)
        except OSError as error:
            return None, unreadable(path, error)

    # --- blocks ---------------------------------------------------------------------------------------------------

    def _walked(self) -> Iterator[_Span]:
        for offset, _, head in datafile.read_frames(read_whole(self._blocks_in, self._info.path), self._info):
            yield _span(offset, head)

    def _blocks(
        self, handle: File, spans: Iterator[_Span], size: int, index: Index | None, note: Note
    ) -> Iterator[Finding]:
        at, run = HEADER_BYTES, None
        for span in spans:
            if span.end > size:  # cut off, which is told already
                break
            if span.offset != at:
                yield self._gap(at, span.offset)
            at = span.end
            findings, bad = self._block(handle.read_at(span.offset, span.end - span.offset), span, index)
            yield from findings
            if run is not None and not (bad and run.takes(span)):
                yield run.finding(self._name)
                run = _Run(span) if bad else None
            elif bad and run is None:
                run = _Run(span)
            note(span.end - span.offset)
        else:
            if at < size:
                yield self._gap(at, size)
        if run is not None:
            yield run.finding(self._name)

    def _gap(self, at: int, end: int) -> Finding:
        return Finding(CORRUPT, self._name, at, end, "bytes in which no block can be told apart", LOST)

    def _block(self, frame: bytes, span: _Span, index: Index | None) -> tuple[list[Finding], bool]:
        """What is wrong around the block, and whether the block itself does not check."""
        try:
            head = check_frame(frame, self._info.seed)
            block, _ = decode_stored(frame)
        except BadBlock:
            return [], True
        self._tally.blocks += 1
        self._tally.records += head.n
        findings = []
        bad_flags = frame[-head.n :].translate(None, FLAG_VALUES)
        if bad_flags:
            flag_at = span.end - head.n + frame[-head.n :].index(bad_flags[0])
            what = f"a delete flag of seq {head.first_seq + flag_at - span.end + head.n} is neither set nor clear"
            todo = "The record counts as live. If it had been deleted it is back: delete it again."
            findings.append(Finding(CORRUPT, self._name, flag_at, flag_at + 1, what, todo))
        if index is not None and not _agrees(span, block, head, index):
            path = datafile.index_path(self._info.path)
            what = f"the index says something else than the block at {span.offset} of the data file"
            todo = "Move the index away: the next start makes a new one from the blocks."
            findings.append(Finding(CORRUPT, path, None, None, what, todo))
        return findings, False


def _span(offset: int, head: BlockHead) -> _Span:
    return _Span(offset, offset + head.frame_len, head.topic_id, head.first_seq, head.first_seq + head.n - 1)


def _indexed(index: Index) -> Iterator[_Span]:
    at = 0
    for entry in index.entries:
        last_seq = entry.first_seq + entry.n - 1
        end = entry.offset + entry.frame_len
        yield _Span(entry.offset, end, entry.topic_id, entry.first_seq, last_seq, entry, at)
        at += entry.n


def _agrees(span: _Span, block: Block, head: BlockHead, index: Index) -> bool:
    flags = entry_flags(block)
    said = Entry(head.topic_id, head.epoch, head.first_seq, head.base_ts, span.offset, head.frame_len, head.n, flags)
    end = span.at + head.n
    if not index.jobs.get(span.offset, NOTHING).fits(block):
        return False
    return said == span.entry and block.ts == index.ts[span.at : end] and block.sizes() == index.sizes[span.at : end]
