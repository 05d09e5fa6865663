"""Jobs as claimers see them: the stored text of a record with its lease spliced in. Nothing of it is parsed."""

import msgspec

from topics.core.block import Block
from topics.core.chunk import Chunk
from topics.core.diff import Plan, Window
from topics.core.lease_parts import Grant
from topics.core.leases import Leases
from topics.core.line import Pick


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
                window.low, window.high = min(window.low, at), max(window.high, at + 1)
        self.plan = Plan(list(chunks.values()), None, 0, 0, 0, len(picks))

    @property
    def leases(self) -> list[tuple[int, int]]:
        """The seqs and the numbers of their leases."""
        return [(job.seq, job.number) for job in self._jobs]

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
    priority = block.priorities[index]
    return b'{%b%b,"lease_id":"lease_%x","deadline":%d,"deliveries":%d%b%b%b%b' % (
        prefix,
        bytes(text[start + 1 : data_at]),
        job.number,
        job.deadline,
        job.deliveries,
        b',"priority":%d' % priority if priority else b"",
        b',"$tag":' if tag else b"",
        tag,
        bytes(text[data_at:end]),
    )
