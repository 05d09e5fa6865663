"""What a topic knows about being derived: how far copies of its source have come, and which have to be made again.

Copies are not logged. What the log and the checkpoints have is where copies ended at certain moments (`Position`): the
copies of everything up to seq `seq` of the source stand at or below `dest_seq` here. After a crash the copies that no
checkpoint had stored are missing: their seqs are taken, but nothing is there. The source forwards them once more and
they go to the seqs they had. Positions keep them in place if the source cannot show all of them any more.

After a loss of power the last positions may be lost too, and the head with them: the topic is `unsure`. Then the source
forwards everything behind the last known position once more, dead or alive, and it comes to the seqs it had: whatever
the source passes over is durable here before anything behind it is shown. Until it is through nobody else gets a seq.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from topics import errors
from topics.core.loss import CRASH
from topics.core.ranges import SEQ_MAX, SeqRanges
from topics.core.topic import Topic
from topics.errors import TopicsError

POSITIONS_MAX = 4096
UNKNOWN = -1


class Position(NamedTuple):
    seq: int  # of the source
    dest_seq: int
    ts: int  # of the topic then


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """A position of one topic as it is logged; generation 0: it is derived no longer."""

    topic_id: int
    generation: int
    source: str = ""
    source_id: int = 0
    source_epoch: int = 0
    seq: int = 0
    dest_seq: int = 0
    ts: int = 0
    totals: dict[str, int] = {}  # copies by router
    skipped: list[tuple[int, int]] = []  # seqs of the source, not in a mark yet, that were gone when their turn came
    boot: int = 0  # of the machine, when the topic was last sure; 0: not known


class _Stored(msgspec.Struct, array_like=True):
    """What `Derived.pack` gives."""

    mark: Mark
    missing: list[tuple[int, int]]
    positions: list[Position]
    struck: bytes
    skipped: bytes


class Derived:
    __slots__ = (
        "boot", "dest_seq", "fresh", "generation", "id_ts", "marked", "missing", "positions", "seq", "skipped",
        "source", "source_epoch", "source_id", "struck", "taking", "totals", "unsure",
    )  # fmt: skip

    def __init__(self, mark: Mark) -> None:
        self.missing: list[tuple[int, int]] = []  # ascending inclusive ranges of seqs whose copies are to come again
        self.positions: list[Position] = []  # ascending, the first at or below all that is missing
        self.struck = SeqRanges()  # deleted among the missing
        self.skipped = SeqRanges()  # seqs of the source that are not copied, as far as that has to be known
        self.id_ts = UNKNOWN  # the time in the topic's newest message id
        self.unsure = False  # the power failed: there may have been more copies than is known
        self.taking = False  # copies have their seqs, and wait for their turn
        self.take(mark)

    def take(self, mark: Mark) -> None:
        """What the mark says is so."""
        self.generation = mark.generation
        self.source = mark.source
        self.source_id = mark.source_id
        self.source_epoch = mark.source_epoch
        self.seq = mark.seq  # copies of everything up to here have been made
        self.dest_seq = mark.dest_seq  # where the last of them is
        self.totals = dict(mark.totals)
        self.boot = mark.boot
        self.marked = mark.seq  # as the log has it
        self.fresh: list[tuple[int, int]] = []  # skipped since then

    def skip(self, first: int, last: int) -> None:
        """These records of the source were gone before they could be copied."""
        self.fresh.append((first, last))
        if self.missing:
            self.skipped.add(first, last)

    def mark(self, topic: Topic) -> Mark:
        return Mark(
            topic.id,
            self.generation,
            self.source,
            self.source_id,
            self.source_epoch,
            self.seq,
            self.dest_seq,
            topic.last_ts,
            dict(self.totals),
            list(self.fresh),
            self.boot,
        )

    # --- what is missing ------------------------------------------------------------------------------------------

    def first_missing(self, after: int) -> int | None:
        """The first seq above `after` that is missing."""
        for first, last in self.missing:
            if last > after:
                return max(first, after + 1)
        return None

    def awaits(self, seq: int) -> bool:
        """Whether a copy is to come back there, to stay."""
        return any(first <= seq <= last for first, last in self.missing) and seq not in self.struck

    def awaited_in(self, first: int, last: int) -> int:
        """How many are to come back in a missing range, to stay."""
        return last - first + 1 - self.struck.count_between(first, last)

    def slots(self, through: int | None) -> list[int]:
        """Missing seqs, up to one of them or all."""
        return [
            seq
            for first, last in self.missing
            for seq in range(first, (last if through is None else min(last, through)) + 1)
        ]

    def filled(self, through: int) -> None:
        """Nothing is missing up to this seq."""
        self.give_up(0, through)

    def give_up(self, first: int, last: int) -> None:
        """Nothing comes back here any more."""
        if first > last:
            return
        kept = []
        for low, high in self.missing:
            kept += [(low, min(high, first - 1)), (max(low, last + 1), high)]
        self.missing = [(low, high) for low, high in kept if low <= high]
        if not self.missing:
            self.positions, self.struck = [], SeqRanges()
            self.forget_skipped()

    def cut(self, seq: int) -> None:
        """The source has lost its end above this seq, and uses those seqs again."""
        self.positions = [position for position in self.positions if position.seq <= seq]
        if seq < self.seq:
            self.skipped = self.skipped.within(0, seq)

    def forget_skipped(self) -> None:
        """Unless something is missing, only what is still to be copied counts."""
        if self.skipped and not self.missing:
            self.skipped = self.skipped.within(self.seq + 1, SEQ_MAX)

    # --- positions ------------------------------------------------------------------------------------------------

    def know(self, position: Position) -> None:
        """Where copies once ended. Of what contradicts itself the first to come counts."""
        positions = self.positions
        at = bisect_left(positions, position.seq, key=lambda known: known.seq)
        before = positions[at - 1] if at else None
        after = positions[at] if at < len(positions) else None
        if after is not None and (after.seq == position.seq or after.dest_seq < position.dest_seq):
            return
        if (before is None or before.dest_seq <= position.dest_seq) and len(positions) < POSITIONS_MAX:
            insort(positions, position)

    def base(self) -> Position:
        """The last position below everything that is missing: copies are made again from here."""
        first = self.missing[0][0]
        found = Position(self.seq, self.dest_seq, 0)
        for position in self.positions:
            if position.dest_seq < first:
                found = position
            else:
                break
        return found

    def next_position(self) -> Position | None:
        """The first one that a missing seq lies below; None: there is only the head."""
        first = self.missing[0][0]
        return next((position for position in self.positions if position.dest_seq >= first), None)

    # --- storage --------------------------------------------------------------------------------------------------

    def pack(self, topic: Topic) -> list[Any]:
        """For the topic's entry in a snapshot."""
        mark = msgspec.to_builtins(self.mark(topic))
        positions = [list(position) for position in self.positions]
        return [mark, self.missing, positions, self.struck.encode(), self.skipped.encode()]

    @classmethod
    def unpack(cls, fields: list[Any]) -> "Derived":
        """ValueError if they are none that `pack` gives."""
        stored = msgspec.convert(fields, _Stored)
        derived = cls(stored.mark)
        derived.missing = stored.missing
        derived.positions = stored.positions
        derived.struck = SeqRanges.decode(stored.struck)
        derived.skipped = SeqRanges.decode(stored.skipped)
        return derived


def is_blocked(topic: Topic, from_seq: int) -> bool:
    """Whether the next thing a reader at `from_seq` would see is missing."""
    if topic.derived is None or not topic.derived.missing or from_seq > topic.head_seq:
        return False
    missing = topic.derived.first_missing(from_seq)
    return missing is not None and missing < topic.next_live(from_seq)


def is_missing(topic: Topic, after: int, through: int) -> bool:
    """Whether something in this range is still to come back."""
    if topic.derived is None or not topic.derived.missing:
        return False
    missing = topic.derived.first_missing(after)
    return missing is not None and missing <= through


def doubt(topic: Topic, boot: int) -> None:
    """After recovery, in this boot of the machine: in another one there may have been copies that no mark tells of, and
    no ceiling bounds. In an `ephemeral` topic they are gone, and their seqs may come again."""
    if topic.derived is not None and topic.config.durability != "ephemeral":
        topic.derived.unsure = topic.derived.boot not in (0, boot)


def check_sure(topic: Topic) -> None:
    """Whether the next seq was never given before. Raises `not_ready`."""
    if topic.derived is not None and topic.derived.unsure:
        message = f'copies in topic "{topic.name}" are being made again from its source; retry in a moment'
        raise TopicsError(errors.NOT_READY, message, {"topic": topic.name, "retry_after_ms": 500})


# --- events -----------------------------------------------------------------------------------------------------------


def apply_mark(topic: Topic, mark: Mark) -> None:
    """When it happens this changes nothing but who the source is; in a replay it also tells what is missing."""
    if not mark.generation:
        topic.derived = None
        return
    derived = topic.derived
    if derived is None:
        if mark.dest_seq > topic.head_seq:  # not as this program writes it
            topic.lose(topic.head_seq + 1, mark.dest_seq, CRASH)
        topic.derived = Derived(mark)
        return
    if derived.source_id != mark.source_id:
        derived.positions, derived.skipped = [], SeqRanges()
    elif derived.source_epoch != mark.source_epoch:
        derived.cut(mark.seq)
    miss(topic, mark.dest_seq)
    for first, last in mark.skipped:
        derived.skipped.add(first, last)
    if derived.missing:
        derived.know(Position(mark.seq, mark.dest_seq, mark.ts))
    derived.take(mark)
    topic.last_ts = max(topic.last_ts, mark.ts)


def miss(topic: Topic, last: int) -> None:
    """In recovery: what lies between the head and `last` were copies."""
    derived = topic.derived
    assert derived is not None
    first = topic.head_seq + 1
    if first > last:
        return
    if not derived.positions:
        derived.know(Position(derived.seq, min(derived.dest_seq, topic.head_seq), topic.last_ts))
    if derived.missing and derived.missing[-1][1] + 1 == first:
        derived.missing[-1] = (derived.missing[-1][0], last)
    else:
        derived.missing.append((first, last))
    topic.head_seq = last
    topic.next_seq = max(topic.next_seq, last + 1)
    if topic.chunks:
        topic.chunks[-1].open = False


def strike(topic: Topic, ranges: SeqRanges) -> None:
    """These seqs are deleted. In a replay that tells that there were copies, before a mark does; they stay deleted when
    they come back."""
    derived = topic.derived
    assert derived is not None
    miss(topic, ranges.last or 0)
    if derived.missing:
        for first, last in ranges:
            derived.struck.add(first, last)


def note_id_time(topic: Topic, ts: int) -> None:
    """Records whose ids have times up to this one have been accepted (ids.py)."""
    if topic.derived is not None and topic.config.message_ids:
        topic.derived.id_ts = max(topic.derived.id_ts, ts)


def time_at(topic: Topic, seq: int, wanted: int) -> int:
    """A time for a record at `seq` that keeps the times of the topic in order."""
    index = bisect_left(topic.chunks, seq, key=lambda chunk: chunk.last_seq)
    if index < len(topic.chunks):
        wanted = min(wanted, topic.chunks[index].base_ts + topic.chunks[index].ts[0])
    return max(wanted, topic.chunks[index - 1].last_ts) if index else wanted


def runs_of(seqs: list[int]) -> Iterator[tuple[int, int]]:
    """Indexes [low, high) of runs of consecutive seqs."""
    low = 0
    for index in range(1, len(seqs) + 1):
        if index == len(seqs) or seqs[index] != seqs[index - 1] + 1:
            yield low, index
            low = index
