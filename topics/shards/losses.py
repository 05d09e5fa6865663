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

from msgspec.structs import replace

from topics import limits
from topics.core import derivation
from topics.core.events import Appended, CreatedAndAppended, Event, RangeLost, Recovered, TopicCreated, TopicUpdated
from topics.core.loss import CORRUPT, CRASH
from topics.core.state import ShardState
from topics.core.topic import Topic
from topics.shards.files import Register
from topics.shards.walscan import Gap, WalReport

# Above the records in the damage: a ceiling may have been raised there for a write that comes behind it and is lost.
DOUBTFUL_AHEAD = limits.BATCH_RECORDS_MAX + limits.CEILING_AHEAD


class Known:
    """How far the snapshot and the frames that stand tell what became of each topic."""

    def __init__(self, state: ShardState) -> None:
        self._lsn_of = {topic.id: topic.applied_lsn for topic in state.by_id.values()}
        self._told_lsn = 0  # an earlier start has told of everything in front of it
        self._starts: list[int] = []  # of the gaps behind that
        self._records: list[int] = []  # that there may have been in them, up to each
        self._frames = 0  # of them

    def learn(self, state: ShardState, event: Event, lsn: int) -> None:
        """Of a frame that stands and has been applied."""
        if type(event) is Recovered:
            self._told_lsn = lsn
        elif type(event) is Appended:
            topic = state.by_id.get(event.topic_id)
            if topic is not None and topic.config.durability == event.durability:
                self._lsn_of[topic.id] = max(lsn, self._lsn_of[topic.id])
        elif isinstance(event, TopicCreated | TopicUpdated):
            self._lsn_of[event.topic_id] = max(lsn, self._lsn_of.get(event.topic_id, 0))
        elif type(event) is CreatedAndAppended:
            self.learn(state, event.created, lsn)

    def gaps_in(self, report: WalReport) -> None:
        """What nobody was told of yet."""
        gaps = [gap for gap in report.gaps if gap.first_lsn > self._told_lsn]
        self._starts = [gap.first_lsn for gap in gaps]
        self._records = list(accumulate(map(_records_in, gaps)))
        self._frames = sum(gap.last_lsn - gap.first_lsn + 1 for gap in gaps)

    @property
    def is_damaged(self) -> bool:
        return bool(self._starts)

    def missing(self, topic: Topic) -> int:
        """How many of its records there may have been in damage behind all that tells of it."""
        before = bisect_right(self._starts, self._lsn_of[topic.id])
        total = self._records[-1] if self._records else 0
        return total - (self._records[before - 1] if before else 0)

    def pass_over_ids(self, state: ShardState) -> None:
        """Each frame that is missing may have made a topic, whose id and epoch others still name."""
        state.next_topic_id += self._frames
        state.next_epoch += self._frames


def _records_in(gap: Gap) -> int:
    frames = gap.last_lsn - gap.first_lsn + 1
    return min(gap.room // limits.RECORD_BYTES_MIN, frames * limits.BATCH_RECORDS_MAX)


def find_losses(
    state: ShardState, register: Register, known: Known, *, trusted: bool, idle: bool
) -> Iterator[RangeLost]:
    """What has to be told of each topic. `trusted`: the register was written in this boot of the machine. `idle`: the
    log ends with a mark that nothing acked was at risk."""
    for topic in state.by_id.values():
        if trusted:
            last = register.get(topic.cell) if topic.cell < register.capacity() else 0
            loss = _loss_of(topic, last, CORRUPT if known.is_damaged else CRASH)
            derivation.doubt(topic, state.boot)
        else:
            loss = _loss_after_power_loss(state, topic, known, idle)
        if loss.first <= loss.last or loss.epoch:
            yield loss


def _loss_after_power_loss(state: ShardState, topic: Topic, known: Known, idle: bool) -> RangeLost:
    durability, reason = topic.config.durability, CORRUPT if known.is_damaged else CRASH
    if _is_doubtful(topic, known, idle):
        last = max(topic.ceiling, topic.head_seq + known.missing(topic) + DOUBTFUL_AHEAD)
        derivation.doubt(topic, state.boot)
        return RangeLost(topic.id, topic.head_seq + 1, last, reason, 0)  # of a derived topic: what was written to it
    if durability == "disk" and not idle:
        return _loss_of(topic, topic.ceiling, reason)
    derivation.doubt(topic, state.boot)
    loss = _loss_of(topic, 0, reason)
    if durability in ("memory", "ephemeral"):  # the head may have gone back
        loss = replace(loss, epoch=state.next_epoch)
        state.next_epoch += 1
    return loss


def _is_doubtful(topic: Topic, known: Known, idle: bool) -> bool:
    """Whether damage may have taken the end of what was acked. In the other classes a new epoch tells that."""
    durability = topic.config.durability
    if durability == "disk" and not idle:  # the ceiling may have been raised in the damage, too
        return known.is_damaged
    return durability in ("disk", "fsync") and known.missing(topic) > 0


def _loss_of(topic: Topic, last: int, reason: str) -> RangeLost:
    """What is to be told of a topic in which seqs up to `last` were given out."""
    first, last = topic.head_seq + 1, max(last, topic.head_seq)
    if topic.config.durability == "ephemeral":  # its deletes were not logged, so nothing of what came back can stand
        first, reason = _first_untold(topic), CRASH
        if topic.derived is not None:
            topic.derived.filled(last)  # none of them come back
    elif topic.derived is not None:  # these were copies, perhaps: the source tells
        derivation.miss(topic, last)
        first = last + 1
    return RangeLost(topic.id, first, last, reason, 0)


def _first_untold(topic: Topic) -> int:
    """The first seq that is live, or gone without a reason that readers are told; head_seq + 1 if there is none."""
    at = max(topic.evicted.floor, topic.delete_below)
    while (hole := topic.holes.after(at - 1)) is not None and hole.first <= at:
        at = hole.last + 1
    return min(at, topic.earliest_seq)
