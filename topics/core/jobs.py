"""Jobs as claimers see them: the stored text of a record with its lease spliced in. Nothing of it is parsed."""

import msgspec

from topics.core.block import Block
from topics.core.chunk import Chunk
from topics.core.claims import Pick
from topics.core.diff import Plan, Window
from topics.core.leases import Grant, Leases
from topics.core.requests import RecordIn, quoted

_STAMPS = (b'"$dead_letter_from"', b'"$dead_letter_deliveries"', b'"$dead_letter_src_seq"')
_strings = msgspec.json.Decoder(dict[str, str])
_DATA = len(b',"data":')
_META = len(b',"meta":')


class Job(msgspec.Struct, frozen=True, gc=False):
    seq: int
    chunk: Chunk
    number: int
    deadline: int
    deliveries: int


class Jobs:
    """What one claimer got, to be read and rendered."""

    __slots__ = ("_jobs", "plan")

    def __init__(self, picks: list[Pick], grant: Grant, leases: Leases) -> None:
        self._jobs = [
            Job(seq, chunk, number, grant.deadline, leases.deliveries(seq))
            for number, (seq, chunk) in enumerate(picks, grant.number)
        ]
        chunks: dict[int, Window] = {}
        for seq, chunk in picks:
            window = chunks.get(id(chunk))
            at = seq - chunk.first_seq
            if window is None:
                chunks[id(chunk)] = Window(chunk=chunk, block=chunk.block, dead=0, low=at, high=at + 1)
            else:
                window.high = at + 1
        self.plan = Plan(list(chunks.values()), None, 0, 0, 0, len(picks))

    def still_held(self, leases: Leases) -> list[int]:
        """The seqs that are still under these leases."""
        held = ((job.seq, leases.lease_of(job.seq), job.number) for job in self._jobs)
        return [seq for seq, lease, number in held if lease is not None and lease.number == number]

    def render(self, leases: Leases, prefix: bytes = b"") -> list[tuple[int, bytes]]:
        """The jobs that are still under these leases, each with its seq. `prefix` goes before the first field."""
        blocks = {id(window.chunk): window.block for window in self.plan.windows}
        shown = []
        for job in self._jobs:
            block, lease = blocks[id(job.chunk)], leases.lease_of(job.seq)
            if block is not None and lease is not None and lease.number == job.number:
                shown.append((job.seq, _render(block, job, prefix)))
        return shown


def _render(block: Block, job: Job, prefix: bytes) -> bytes:
    index = job.seq - block.first_seq
    start, end, text = block.start(index), block.ends[index], block.text
    data_at = start + block.data_offs[index]
    tag = block.tag(index)
    return b'{%b%b,"lease_id":"lease_%x","deadline":%d,"deliveries":%d%b%b%b' % (
        prefix,
        bytes(text[start + 1 : data_at]),
        job.number,
        job.deadline,
        job.deliveries,
        b',"$tag":' if tag else b"",
        tag,
        bytes(text[data_at:end]),
    )


def dead_letter(block: Block, seq: int, queue: str, deliveries: int) -> RecordIn:
    """The record as it is put into the dead-letter topic: its own tag, node, data and meta, and where it comes from."""
    index = seq - block.first_seq
    text, end, meta_len = block.text, block.ends[index], block.meta_lens[index]
    data_at = block.start(index) + block.data_offs[index] + _DATA
    data_end = end - 1 - (_META + meta_len if meta_len else 0)
    node_id, tag = block.node_ids[index], block.tag(index)
    meta = bytes(text[end - 1 - meta_len : end - 1])
    return RecordIn(
        msgspec.Raw(bytes(text[data_at:data_end])),
        msgspec.json.decode(tag, type=str) if tag else None,
        msgspec.json.decode(block.nodes[node_id - 1], type=str) if node_id else None,
        msgspec.Raw(_stamped(meta, queue, deliveries, seq)),
    )


def _stamped(meta: bytes, queue: str, deliveries: int, seq: int) -> bytes:
    """Meta stays as it is, with three members more; only one that has such members already is written anew."""
    stamps = _stamps(queue, deliveries, seq)
    if any(stamp in meta for stamp in _STAMPS):
        members, fresh = _strings.decode(meta), _strings.decode(b"{%b}" % stamps)
        for name in fresh:
            members.pop(name, None)
        return msgspec.json.encode(members | fresh)
    inside = meta.strip()[1:-1].strip() if meta else b""
    return b"{%b%b%b}" % (inside, b"," if inside else b"", stamps)


def dead_letter_mark(queue: str, deliveries: int, seq: int) -> bytes:
    """What the meta of this dead letter ends with."""
    return _stamps(queue, deliveries, seq) + b"}"


def _stamps(queue: str, deliveries: int, seq: int) -> bytes:
    return b'"$dead_letter_from":%b,"$dead_letter_deliveries":"%d","$dead_letter_src_seq":"%d"' % (
        quoted(queue),
        deliveries,
        seq,
    )
