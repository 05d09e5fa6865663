"""Jobs as claimers see them: the stored text of a record with its lease spliced in. Nothing of it is parsed."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from topics import limits
from topics.core.block import Block
from topics.core.chunk import Chunk
from topics.core.diff import Plan, Window
from topics.core.lease_parts import Grant
from topics.core.leases import Leases
from topics.core.line import Pick


class Jobs:
    """What one claimer got, to be read and rendered."""

    __slots__ = ("_deadline", "_deliveries", "_numbers", "_picks", "plan")

    def __init__(
        self,
        picks: Sequence[Pick],
        numbers: Sequence[int],
        deliveries: Sequence[int],
        deadline: int,
        windows: list[Window],
    ) -> None:
        self._picks = picks
        self._numbers = numbers
        self._deliveries = deliveries
        self._deadline = deadline
        self.plan = Plan(windows, None, 0, 0, 0, len(picks))

    @classmethod
    def of(cls, picks: list[Pick], grant: Grant, leases: Leases) -> "Jobs":
        """What was just leased."""
        numbers = range(grant.number, grant.number + len(picks))
        return cls(picks, numbers, leases.counted.of_leased(grant.seqs), grant.deadline, _windows(picks))

    @classmethod
    def joined(cls, portions: "list[Jobs]", *, sort: bool) -> "Jobs":
        """All that was leased, with one deadline; in the order of the seqs if it is to be sorted, as each portion is
        then."""
        picks = [pick for jobs in portions for pick in jobs._picks]
        numbers = [number for jobs in portions for number in jobs._numbers]
        deliveries = [times for jobs in portions for times in jobs._deliveries]
        if sort and any(before._picks[-1][0] > after._picks[0][0] for before, after in pairwise(portions)):
            order = sorted(range(len(picks)), key=lambda index: picks[index][0])
            picks, numbers = [picks[index] for index in order], [numbers[index] for index in order]
            deliveries = [deliveries[index] for index in order]
        windows = _together([window for jobs in portions for window in jobs.plan.windows])
        return cls(picks, numbers, deliveries, portions[0]._deadline, windows)

    @property
    def leases(self) -> list[tuple[int, int]]:
        """The seqs and the numbers of their leases."""
        return [(seq, number) for number, (seq, _) in zip(self._numbers, self._picks, strict=True)]

    def render(self, leases: Leases, seqs: list[int], texts: list[bytes], prefix: bytes = b"") -> Iterator[None]:
        """Add the seqs and the texts of the jobs that are still under these leases, in steps. `prefix` goes before the
        first field. A claim is of a thousand jobs, so what those of a block have in common is looked up once."""
        windows = {id(window.chunk): window for window in self.plan.windows}
        opening = b"{" + prefix
        said: dict[int, bytes] = {}  # by deliveries and priority
        enough = len(texts) + limits.RENDER_STEP
        chunk: Chunk | None = None
        block: Block | None = None
        for (seq, of_job), number, deliveries in zip(self._picks, self._numbers, self._deliveries, strict=True):
            if of_job is not chunk:
                if len(texts) >= enough:
                    enough = len(texts) + limits.RENDER_STEP
                    yield
                chunk, window = of_job, windows[id(of_job)]
                block = window.block
                if block is not None:
                    text, base = _text_of(block, window)
                    first_seq, ends, data_offs = block.first_seq, block.ends, block.data_offs
                    priorities, tags, tag_ends = block.priorities, bytes(block.tags), block.tag_ends
            lease = leases.lease_of(seq)
            if block is None or lease is None or lease.number != number:
                continue
            index = seq - first_seq
            key = deliveries << 8 | priorities[index]
            terms = said.get(key)
            if terms is None:
                terms = said[key] = self._terms(deliveries, priorities[index])
            if tags and (tag := tags[tag_ends[index - 1] if index else 0 : tag_ends[index]]):
                terms += b',"$tag":' + tag
            start = ends[index - 1] + 1 - base if index else 0
            data_at = start + data_offs[index]
            seqs.append(seq)
            texts.append(
                b'%b%b,"lease_id":"lease_%x%b%b'
                % (
                    opening,
                    text[start + 1 : data_at],
                    number,
                    terms,
                    text[data_at : ends[index] - base],
                )
            )

    def _terms(self, deliveries: int, priority: int) -> bytes:
        said = b'","deadline":%d,"deliveries":%d' % (self._deadline, deliveries)
        return said + b',"priority":%d' % priority if priority else said


def _windows(picks: Sequence[Pick]) -> list[Window]:
    """What has to be read of each chunk."""
    if len(picks) == 1:
        ((seq, chunk),) = picks
        at = seq - chunk.first_seq
        return [Window(chunk=chunk, block=chunk.block, dead=0, low=at, high=at + 1)]
    windows: dict[int, Window] = {}
    window: Window | None = None
    for seq, chunk in picks:
        at = seq - chunk.first_seq
        if window is None or window.chunk is not chunk:
            window = windows.get(id(chunk))
            if window is None:
                window = windows[id(chunk)] = Window(chunk=chunk, block=chunk.block, dead=0, low=at, high=at + 1)
        if at >= window.high:
            window.high = at + 1
        elif at < window.low:
            window.low = at
    return list(windows.values())


def _together(windows: list[Window]) -> list[Window]:
    """One for each chunk."""
    merged: dict[int, Window] = {}
    for window in windows:
        there = merged.setdefault(id(window.chunk), window)
        there.low, there.high = min(there.low, window.low), max(there.high, window.high)
    return list(merged.values())


def _text_of(block: Block, window: Window) -> tuple[bytes, int]:
    """The text of a window, or of the whole block, and where in that of the block it begins. Of bytes a part is cut in
    half the time that it takes of anything else."""
    if type(block.text) is bytes:
        return block.text, 0
    start, end = block.start(window.low), block.ends[window.high - 1]
    return bytes(block.text[start:end]), start
