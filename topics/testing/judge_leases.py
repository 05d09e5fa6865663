"""What a history tells about who held which job of a queue, and for how long: certainly, or perhaps.

A crash forgets leases, delays and deliveries unless the queue has `leases_durable`; a clean stop forgets nothing. A
call without an answer may have happened at some time soon after it began, or never.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

from topics.testing.history import CLAIM, EXTEND, KILL, NACK, OK, POWER, REFUSED, STOP, UNKNOWN, Op, is_between
from topics.testing.judge_log import Judge, Place

LOST_MS = 300  # virtual: what is not answered has happened by then, if ever


@dataclass(slots=True)
class Lease:
    claim: Op
    seq: int
    id: str
    deadline: int
    deliveries: int

    @property
    def node(self) -> str:
        name: str = self.claim.args["node"]
        return name

    def is_before(self, other: "Lease") -> bool:
        """Certainly."""
        return self.claim.ended < other.claim.began


def concerns(settle: Op, lease: Lease) -> bool:
    """Whether an ack, nack or extension may have been of this lease."""
    args, seq = settle.args, lease.seq
    if args["node"] != lease.node or settle.ended < lease.claim.began:
        return False
    if seq not in args["seqs"] or seq in settle.result.get("skipped", ()):
        return False
    ids = args["lease_ids"]
    return ids is None or ids[args["seqs"].index(seq)] == lease.id


class Holdings:
    """Of one queue."""

    def __init__(self, log: Judge) -> None:
        self._log = log
        self.durable = any(config.get("leases_durable") for _, config in log.configs)
        self.claims = [op for op in log.of(CLAIM) if op.outcome == OK]
        self.lost_claims = [op for op in log.of(CLAIM) if op.outcome == UNKNOWN]
        self.nacks = [op for op in log.of(NACK) if op.outcome != REFUSED]
        self.extends = [op for op in log.of(EXTEND) if op.outcome != REFUSED]
        self.leases: dict[int, list[Lease]] = defaultdict(list)
        for op in self.claims:
            for job in op.result["claimed"]:
                lease = Lease(op, job["$seq"], job["lease_id"], job["deadline"], job["deliveries"])
                self.leases[lease.seq].append(lease)

    def may_be_forgotten(self, first: float, last: float) -> bool:
        """Whether a crash between the two may have taken what was known of leases."""
        if self.durable:
            return False
        cramped = [crash for crash in self._log.crashes if crash.short_of_room]
        return is_between(self._log.crashes, first, last, (KILL, POWER)) or is_between(cramped, first, last, (STOP,))

    def is_forgotten(self, lease: Lease, op: Op) -> bool:
        """Whether one certainly has, between the two."""
        return self._forgotten_since(op) > lease.claim.ended

    def _forgotten_since(self, op: Op) -> float:
        """The last time before `op` at which all leases were forgotten: a life that had stored none ended."""
        crashes = [crash for crash in self._log.crashes if crash.kind in (KILL, POWER) and crash.sudden]
        return max((crash.at for crash in crashes if crash.until < op.began and not self.durable), default=-inf)

    def is_given_back(self, lease: Lease, nack: Op, op: Op) -> bool:
        """Whether this nack has certainly ended the lease, if nothing else had, before `op`."""
        certain = nack.outcome == OK and lease.claim.ended < nack.began and nack.ended < op.began
        return certain and concerns(nack, lease)

    def is_passed_on(self, lease: Lease, op: Op) -> bool:
        """Whether another claim has certainly got the job after it, and before `op`; it may be of the same node."""
        return any(lease.is_before(other) and other.claim.ended < op.began for other in self.leases[lease.seq])

    # --- perhaps over -----------------------------------------------------------------------------------------------

    def may_be_over(self, lease: Lease, op: Op) -> bool:
        """Whether its job may have been free when `op` happened, or another's: by its deadline, a nack, or a crash."""
        if self.may_be_forgotten(lease.claim.began, op.ended) or self.is_passed_on(lease, op):
            return True
        nacks = (nack for nack in self.nacks if nack is not op and concerns(nack, lease))
        if any(nack.overlaps(lease.claim.began, op.ended) for nack in nacks):
            return True
        return min(self._ends(lease, op)) < op.ended_ms

    def _ends(self, lease: Lease, op: Op) -> Iterator[float]:
        """The deadlines that may have been in force when `op` happened, each at its earliest."""
        extends = [e for e in self.extends if e is not op and e.began < op.ended and concerns(e, lease)]
        certain = [e for e in extends if e.outcome == OK and lease.claim.ended < e.began and e.ended < op.began]
        if not certain:
            yield lease.deadline
        for extend in extends:
            if not any(extend.ended < later.began for later in certain):
                yield self._deadline(extend, lease.seq, 0)

    def _deadline(self, extend: Op, seq: int, slack_ms: int) -> float:
        if extend.outcome == OK:
            deadline: int = extend.result["deadlines"][str(seq)]
            return deadline
        lease_ms: int = extend.args["lease_ms"]
        return extend.began_ms + lease_ms + slack_ms

    # --- certainly free ---------------------------------------------------------------------------------------------

    def busy_until(self, seq: int, place: Place, op: Op) -> float:
        """The latest time until which somebody may hold the job, or its delay may last, when `op` happens."""
        since = self._forgotten_since(op)
        times = [self._due_ms(seq, place), *self._held_until(seq, op, since)]
        for nack in self.nacks:
            about = seq in nack.args["seqs"] and seq not in nack.result.get("skipped", ())
            if about and nack.began < op.ended and nack.began >= since:
                at_ms = nack.ended_ms if nack.outcome == OK else nack.began_ms + LOST_MS
                times.append(at_ms + nack.args["delay_ms"])
        for claim in self.lost_claims:
            if claim.began < op.ended and claim.began >= since:
                times.append(claim.began_ms + claim.args["wait_ms"] + claim.args["lease_ms"] + LOST_MS)
        return max(times)

    def _held_until(self, seq: int, op: Op, since: float) -> Iterator[float]:
        for lease in self.leases.get(seq, ()):
            if lease.claim is op or lease.claim.began >= op.ended or lease.claim.began < since:
                continue
            if any(self.is_given_back(lease, nack, op) for nack in self.nacks):
                continue
            yield lease.deadline
            for extend in self.extends:
                if extend.began < op.ended and concerns(extend, lease):
                    yield self._deadline(extend, seq, LOST_MS)

    def _due_ms(self, seq: int, place: Place) -> float:
        """When its time has come, at the latest."""
        written = [a.ended_ms for a in self._log.attempts[place.write] if a.outcome == OK]
        delay_ms: int = terms_of(self._log, place).get("delay_ms", 0)
        return (max(written) if written else inf) + delay_ms


def terms_of(log: Judge, place: Place) -> dict[str, int]:
    """What the job asked for when it was written."""
    terms = log.attempts[place.write][0].args.get("terms")
    found: dict[str, int] = terms[place.number] if terms else {}
    return found
