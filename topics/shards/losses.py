"""What was acked and did not come back: what a start can know of it, topic by topic.

As long as the machine has not gone down, the head register tells exactly. After that the log is all there is, and it
may be damaged: then frames of any topic may be missing. A later frame of a topic says where its head is, and what is
missing in front of it is a gap in its seqs, which the replay fills. Of a topic without such a frame all is told as lost
that may have been there, so that no seq is given out twice: as many records as fit into the damage, and what an open
ceiling allows, if the topic may have been of class `disk` behind it. The class counts as known if a later frame names
the same one.
"""

from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from operator import attrgetter

from msgspec.structs import replace

from topics import limits
from topics.core import derivation, residence
from topics.core.events import Appended, CreatedAndAppended, Event, RangeLost, Recovered, TopicCreated, TopicUpdated
from topics.core.loss import CORRUPT, CRASH
from topics.core.ranges import SeqRanges
from topics.core.state import ShardState
from topics.core.topic import Topic
from topics.shards.files import REMOVED_CELL, Register
from topics.shards.walscan import Gap, WalReport

# Above the records in the damage: a ceiling may have been raised there for a write that comes behind it and is lost.
DOUBTFUL_AHEAD = limits.BATCH_RECORDS_MAX + limits.CEILING_AHEAD
LOSS_BYTES_MIN = 11  # that one with an epoch takes in a frame


class Known:
    """How far the snapshot and the frames that stand tell what became of each topic."""

    def __init__(self, state: ShardState) -> None:
        self._lsn_of = {topic.id: topic.applied_lsn for topic in state.by_id.values()}
        self._told: list[tuple[int, int]] = []  # what earlier starts have told of
        self.gaps: list[Gap] = []  # what nobody was told of yet, ascending
        self._records: list[int] = []  # that there may have been in them, up to each

    def learn(self, state: ShardState, event: Event, lsn: int) -> None:
        """Of a frame that stands and has been applied."""
        if type(event) is Recovered:
            self._told += event.gaps
        elif type(event) is Appended:
            topic = state.by_id.get(event.topic_id)
            if topic is not None and topic.config.durability == event.durability:
                self._lsn_of[topic.id] = max(lsn, self._lsn_of[topic.id])
        elif isinstance(event, TopicCreated | TopicUpdated):
            self._lsn_of[event.topic_id] = max(lsn, self._lsn_of.get(event.topic_id, 0))
        elif type(event) is CreatedAndAppended:
            self.learn(state, event.created, lsn)

    def gaps_in(self, report: WalReport) -> None:
        told = SeqRanges()
        for first, last in sorted(self._told):
            told.add(first, last)
        self.gaps = [gap for gap in report.gaps if not told.covers(gap.first_lsn, gap.last_lsn)]
        self._records = list(accumulate(map(_records_in, self.gaps), initial=0))

    @property
    def is_damaged(self) -> bool:
        return bool(self.gaps)

    def missing(self, topic: Topic) -> int:
        """How many of its records there may have been in damage that reaches behind all that tells of it."""
        told = bisect_right(self.gaps, self._lsn_of[topic.id], key=attrgetter("last_lsn"))
        return self._records[-1] - self._records[told]

    def pass_over_ids(self, state: ShardState) -> None:
        """Each frame that is missing may have made a topic, whose id and epoch others still name, and what an earlier
        start had found lost may have given epochs to many."""
        state.next_topic_id += sum(map(_frames_in, self.gaps))
        state.next_epoch += sum(_frames_in(gap) + gap.room // LOSS_BYTES_MIN for gap in self.gaps)


def _frames_in(gap: Gap) -> int:
    return gap.last_lsn - gap.first_lsn + 1


def _records_in(gap: Gap) -> int:
    return min(gap.room // limits.RECORD_BYTES_MIN, _frames_in(gap) * limits.BATCH_RECORDS_MAX)


def find_removed(state: ShardState, register: Register, trusted: bool) -> list[int]:
    """Topics that are there because the frame that removed them is damaged, by id. Names and cells are given to others
    only when that was durable, and until then the cell says so."""
    newest: dict[int, int] = {}
    for topic in state.by_id.values():
        newest[topic.cell] = max(topic.id, newest.get(topic.cell, 0))
    return [
        topic.id
        for topic in state.by_id.values()
        if state.topics[topic.name] is not topic
        or newest[topic.cell] != topic.id
        or (trusted and _cell_of(register, topic) == REMOVED_CELL)
    ]


def _cell_of(register: Register, topic: Topic) -> int:
    return register.get(topic.cell) if topic.cell < register.capacity() else 0


def find_losses(
    state: ShardState, register: Register, known: Known, *, trusted: bool, idle: bool
) -> Iterator[RangeLost]:
    """What has to be told of each topic. `trusted`: the register was written in this boot of the machine. `idle`: the
    log ends with a mark that nothing acked was at risk."""
    for topic in state.by_id.values():
        if trusted:
            loss = _loss_of(topic, _cell_of(register, topic), CORRUPT if known.is_damaged else CRASH)
            derivation.doubt(topic, state.boot)
        else:
            loss = _loss_after_power_loss(state, topic, known, idle)
        if loss.first <= loss.last or loss.epoch:
            yield loss


def _loss_after_power_loss(state: ShardState, topic: Topic, known: Known, idle: bool) -> RangeLost:
    durability, reason = topic.config.durability, CORRUPT if known.is_damaged else CRASH
    is_doubtful = _is_doubtful(topic, known, idle)
    if durability == "disk" and not (idle or is_doubtful):
        return _loss_of(topic, topic.ceiling, reason)
    derivation.doubt(topic, state.boot)
    if is_doubtful:
        last = max(topic.ceiling, topic.head_seq + known.missing(topic) + DOUBTFUL_AHEAD)
        first = residence.first_untold(topic) if residence.is_resident(topic) else topic.head_seq + 1
        loss = RangeLost(topic.id, first, last, reason, 0)  # of a derived topic: what was written to it
    else:
        loss = _loss_of(topic, 0, reason)
    if durability in ("memory", "ephemeral"):  # the head may have gone back
        loss = replace(loss, epoch=state.next_epoch)
        state.next_epoch += 1
    return loss


def _is_doubtful(topic: Topic, known: Known, idle: bool) -> bool:
    """Whether damage may have taken the end of what was acked, or a change to a class that promises more."""
    durability = topic.config.durability
    if durability == "disk" and not idle:  # the ceiling may have been raised in the damage, too
        return known.is_damaged
    if durability in ("memory", "ephemeral") and topic.derived is not None:
        return False  # a new epoch says that copies may be gone, and the source makes them again
    return known.missing(topic) > 0


def _loss_of(topic: Topic, last: int, reason: str) -> RangeLost:
    """What is to be told of a topic in which seqs up to `last` were given out."""
    first, last = topic.head_seq + 1, max(last, topic.head_seq)
    if residence.is_resident(topic):
        if topic.derived is not None:
            topic.derived.filled(last)  # none of them come back
        return RangeLost(topic.id, residence.first_untold(topic), _last_live(topic, last), CRASH, 0)
    if topic.derived is not None:  # these were copies, perhaps: the source tells
        derivation.miss(topic, last)
        first = last + 1
    return RangeLost(topic.id, first, last, reason, 0)


def _last_live(topic: Topic, last: int) -> int:
    """Of an `ephemeral` topic. Its deletes were not logged, so any record may have been live, and none can stand. But
    if nothing came since a checkpoint, all above the last record that was live then had been deleted."""
    head_seq, live = topic.stored_live or (0, 0)
    return live if head_seq == last else last
