"""Message ids: what a topic with `message_ids` gives each of its records as `$id`, a UUIDv7 (RFC 9562).

    bits  field
      48  time: `$ts`; of a copy that a router made the time of its original, as far as the order allows
       4  7
      12  seq, the upper ones of its lowest 44 bits
       2  binary 10
      32  seq, the lower ones
      30  salt of the topic, drawn when its ids are turned on and kept in its configuration

Nothing of it is drawn per record, so a record that is made again after a crash has the id it had. Time and seq in front
make ids sort as seqs do; only around a seq that is a multiple of 2^44 could two of one millisecond be the wrong way
round. The salt keeps ids of different topics, and of different servers, apart.

In a record's text the id is the last member before `data`, and it always takes the same room.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from topics.core.block import Block

if TYPE_CHECKING:
    from topics.core.topic import Topic

SALT_BITS = 30
SEQ_BITS = 44
TIME_BITS = 48
_SEQ_MASK = (1 << SEQ_BITS) - 1
_TIME_MASK = (1 << TIME_BITS) - 1
_REST_MASK = (1 << 62) - 1
_MEMBER = b',"$id":"'
MEMBER_BYTES = len(_MEMBER) + 36 + 1


class Ids(NamedTuple):
    """What the ids of one write are made of, beside seqs."""

    salt: int
    ts: int


def ids_of(topic: "Topic", ts: int) -> Ids | None:
    """For a write at `ts`; None if its records get no ids. Behind copies they go on from the time of those."""
    config = topic.config
    if not config.message_ids:
        return None
    return Ids(config.id_salt, ts if topic.derived is None else max(ts, topic.derived.id_ts))


def make_id(ts: int, seq: int, salt: int) -> bytes:
    """As text, in lower case."""
    time, rest = ts & _TIME_MASK, (seq & _SEQ_MASK) << SALT_BITS | salt
    low = 1 << 63 | rest & _REST_MASK
    return b"%08x-%04x-7%03x-%04x-%012x" % (time >> 16, time & 0xFFFF, rest >> 62, low >> 48, low & 0xFFFFFFFFFFFF)


def members(times: Sequence[int], first_seq: int, salt: int) -> list[bytes]:
    """The members of records at consecutive seqs, as they stand in the texts."""
    return [b'%b%b"' % (_MEMBER, make_id(ts, seq, salt)) for seq, ts in enumerate(times, first_seq)]


def time_of(block: Block, index: int) -> int:
    """The time in a record's id; 0 if it has none."""
    end = block.start(index) + block.data_offs[index]
    member = bytes(block.text[max(block.start(index), end - MEMBER_BYTES) : end])
    if not member.startswith(_MEMBER):  # quotes inside of a node are escaped, so nothing else looks like it
        return 0
    return int(member[8:16] + member[17:21], 16)


def order_times(times: Sequence[int], floor: int) -> list[int]:
    """The times for the ids of copies: those of their originals, but never below the one before."""
    ordered = []
    for ts in times:
        floor = max(floor, ts)
        ordered.append(floor)
    return ordered
