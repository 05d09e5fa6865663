"""The heads of a shard's calls, typed. What does not fit is refused as the caller's mistake.

Fields that are not known are left alone, so that a newer gateway may say more than this shard understands.
"""

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec

from topics import limits
from topics.core.groups import Where
from topics.errors import invalid

HeadT = TypeVar("HeadT", bound=msgspec.Struct)
Count = Annotated[int, msgspec.Meta(ge=0)]
Id = Annotated[str, msgspec.Meta(min_length=1, max_length=limits.WATCH_ID_MAX)]
Cursors = dict[str, tuple[Count, Count]]  # topic → (seq, epoch)


class TopicHead(msgspec.Struct, frozen=True, gc=False):
    topic: str


class PutHead(msgspec.Struct, frozen=True, gc=False):
    topic: str
    prefixes: tuple[str, ...] | None = None  # of the names a config may mention; none: all


class StateHead(msgspec.Struct, frozen=True, gc=False):
    topic: str
    touch: bool = True


class RemoveHead(msgspec.Struct, frozen=True, gc=False):
    topic: str
    if_empty: bool = False


class AppendHead(msgspec.Struct, frozen=True, gc=False):
    topic: str
    return_seqs: bool = True
    key: str | None = None
    prefixes: tuple[str, ...] | None = None  # as for put


class DiffHead(msgspec.Struct, frozen=True, gc=False):
    topic: str
    wait: bool = True  # false: answer now, whatever the query says


class GroupHead(msgspec.Struct, frozen=True, gc=False):
    topic: str
    group: str


class FetchHead(GroupHead, frozen=True, gc=False):
    wait: bool = True  # as for diff


class AttachGroupHead(GroupHead, frozen=True, gc=False):
    consumer: Annotated[str, msgspec.Meta(min_length=1, max_length=limits.GROUP_CONSUMER_MAX)]
    start: Where | None = None
    back: bool = False


class FollowHead(msgspec.Struct, frozen=True):
    topic: str
    from_seq: Count
    epoch: Count = 0
    limit: Count = limits.DIFF_LIMIT_DEFAULT
    bytes: Count = limits.BATCH_BYTES_DEFAULT
    wait_ms: Count = 0
    strong: bool = False
    blocks: bool = False
    nodes: tuple[str, ...] = ()
    tags: bool = False
    meta: bool = True
    data: bool = True
    counted: bool = False  # the answer is to say how many records it has


class PlacesHead(msgspec.Struct, frozen=True):
    topics: tuple[str, ...]
    times: dict[str, Count] = {}  # of the topics whose place at a time is wanted


class SeekHead(msgspec.Struct, frozen=True):
    topic: str
    ts: Count


class ClaimHead(msgspec.Struct, frozen=True, gc=False):
    topic: str
    wait: bool = True  # as for diff


class WorkHead(msgspec.Struct, frozen=True):
    topic: str
    node: str
    max: int | None = None
    lease_ms: int | None = None


class CopyHead(msgspec.Struct, frozen=True):
    topic: str
    key: str
    since: int | None = None
    origin: bytes = b""
    create: bool = True


class ListHead(msgspec.Struct, frozen=True):
    after: str = ""
    prefix: str = ""
    limit: Count = limits.LIST_PAGE_DEFAULT
    prefixes: tuple[str, ...] | None = None  # those the caller may see; none: all
    touch: bool = False


class RouterHead(msgspec.Struct, frozen=True):
    name: str
    dest_gone: bool = False  # its destination was removed


class RouterPutHead(msgspec.Struct, frozen=True):
    name: str
    generation: Count


class RouterPageHead(msgspec.Struct, frozen=True):
    after: str = ""
    prefix: str = ""
    limit: Count = limits.LIST_PAGE_DEFAULT
    prefixes: tuple[str, ...] | None = None  # those the caller may see; none: all
    source: str | None = None
    dest: str | None = None


class LinkHead(msgspec.Struct, frozen=True):
    name: str
    generation: Count
    source: str
    dest: str


class StoreHead(msgspec.Struct, frozen=True):
    dest: str
    dest_id: Count


class UnlinkHead(StoreHead, frozen=True):
    names: tuple[str, ...] = ()
    generation: Count = 0
    source_gone: bool = False


class AttachDerivedHead(msgspec.Struct, frozen=True):
    dest: str
    dest_id: Count
    generation: Count
    routers: dict[str, Count]  # name → generation
    source: str
    source_id: Count
    epoch: Count
    source_head: Count
    start: Count  # where to begin if nothing is known
    cursor: Count  # how far the source believes to be
    positions: tuple[tuple[Count, Count], ...] = ()  # (seq of the source, seq here) that it remembers
    skipped: tuple[tuple[Count, Count], ...] = ()  # and what it skipped


class TakeHead(msgspec.Struct, frozen=True):
    dest: str
    dest_id: Count
    generation: Count
    from_seq: Count  # the copies are of the source's records above this
    to_seq: Count  # and up to this
    routers: tuple[str, ...]
    skipped: tuple[tuple[Count, Count], ...] = ()  # ranges in between that were gone when their turn came
    redone: bool = False  # they may have been here before the power failed; dead ones are among them
    probe: bool = False  # nothing is to be taken: whether some of it would be
    sure: bool = False  # all that may have been here is here again
    volatile: bool = False  # the source may lose what it has forwarded


class TrimHead(TakeHead, frozen=True):
    missed: int = 1  # records that the source lost


class FillHead(TakeHead, frozen=True):
    lost: int = 0  # seqs at the beginning that the source cannot show
    gaps: tuple[tuple[Count, Count], ...] = ()  # all such ranges
    last: bool = False  # the source has no more


class SettleHead(msgspec.Struct, frozen=True):
    source: str
    dest: str
    depth: Count = 0


class MetricsHead(msgspec.Struct, frozen=True):
    topics: Count = 0  # rows at most
    prefixes: tuple[str, ...] | None = None


class SessionHead(msgspec.Struct, frozen=True):
    wid: Id
    owner: str  # the fingerprint of the key that made it; empty: none
    cursors: Cursors


class LookHead(msgspec.Struct, frozen=True):
    wid: Id
    owner: str  # "*" matches all


class AttachHead(LookHead, frozen=True):
    stream: Id
    cursors: Cursors | None = None  # of a stream that goes on


class DetachHead(msgspec.Struct, frozen=True):
    wid: Id
    stream: Id
    cursors: Cursors
    exact: bool = True  # not if something was under way that the client may have got


class ProgressHead(msgspec.Struct, frozen=True):
    sessions: dict[Id, tuple[Id, Cursors]]


def read_head(head: Mapping[str, Any], kind: type[HeadT]) -> HeadT:
    try:
        return msgspec.convert(head, kind)
    except msgspec.ValidationError as error:
        raise invalid(f"the head of the call cannot be read: {error}") from None
