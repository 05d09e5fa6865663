"""What holds for a queue, beyond what holds for its log (judge_log.py), where an ack is a delete.

1. Leases. Each has an id of its own and the deadline it should have. A job is not given out while somebody certainly
   holds it: not before the deadline of the lease, as it was last extended, unless it was given back.
2. Fences. A worker's word counts if it holds the job, and not once another has it, it is finished, or a crash has
   forgotten the lease.
3. Ends. What was finished, deleted, or is put off, by its producer or with a nack, is not given out (before its time).
4. Nothing is passed by. A claim that gets less than it asked for leaves no job behind that it could have had, also if
   it waited, and none that is more urgent or was there longer than what it got.
5. Deliveries are counted: each claim is one more, unless it is given back without a penalty.
"""

from collections.abc import Iterator

from topics import limits
from topics.testing.history import ACK, EXTEND, NACK, OK, Op, selects
from topics.testing.judge_leases import Holdings, Lease, concerns, terms_of
from topics.testing.judge_log import POLL_SLACK_MS, Judge, Place


def is_queue(log: Judge) -> bool:
    return any(config.get("type") == "queue" for _, config in log.configs)


class QueueJudge:
    """Of one queue, whose log is judged already."""

    def __init__(self, log: Judge) -> None:
        self._log = log
        self._held = Holdings(log)
        self._problems: list[str] = []

    def _wrong(self, what: str, op: Op) -> None:
        self._problems.append(f"{self._log.name}: {what}\n    {op}")

    def judge(self) -> list[str]:
        ids: dict[str, Lease] = {}
        for leases in self._held.leases.values():
            for lease in leases:
                if ids.setdefault(lease.id, lease) is not lease:
                    self._wrong(f"{lease.id} is there twice, also of {ids[lease.id].claim}", lease.claim)
                self._check_terms(lease)
                self._check_ends(lease)
                self._check_deliveries(lease, leases)
            self._check_alone(leases)
        for settle in self._log.of(ACK, NACK, EXTEND):
            if settle.outcome == OK:
                self._check_settle(settle)
        for claim in self._held.claims:
            self._check_wait(claim)
            self._check_left(claim)
        return self._problems

    # --- 1: leases --------------------------------------------------------------------------------------------------

    def _check_terms(self, lease: Lease) -> None:
        claim = lease.claim
        granted_ms = lease.deadline - claim.args["lease_ms"]
        if not claim.began_ms <= granted_ms <= claim.ended_ms:
            self._wrong(f"the lease of job {lease.seq} has a wrong deadline", claim)

    def _check_alone(self, leases: list[Lease]) -> None:
        for index, one in enumerate(leases):
            for other in leases[index + 1 :]:
                if not self._may_follow(one, other) and not self._may_follow(other, one):
                    self._wrong(f"job {one.seq} is held twice, also by {other.claim}", one.claim)

    def _may_follow(self, one: Lease, other: Lease) -> bool:
        """Whether the first may have been over when the other was given."""
        return not other.is_before(one) and self._held.may_be_over(one, other.claim)

    # --- 2: fences --------------------------------------------------------------------------------------------------

    def _check_settle(self, settle: Op) -> None:
        seqs, skipped = settle.args["seqs"], settle.result["skipped"]
        counted = [seq for seq in seqs if seq not in skipped]
        told = settle.result[{ACK: "acked", NACK: "nacked", EXTEND: "extended"}[settle.kind]]
        if told != len(counted) or not set(skipped) <= set(seqs):
            self._wrong("it does not say what became of each job", settle)
        for seq in counted:
            self._check_counts(settle, seq)
        for seq in skipped:
            self._check_skipped(settle, seq)

    def _check_counts(self, settle: Op, seq: int) -> None:
        """The word of this worker counted."""
        leases = [lease for lease in self._held.leases.get(seq, ()) if lease.claim.began < settle.ended]
        own = [lease for lease in leases if concerns(settle, lease)]
        lost = [claim for claim in self._held.lost_claims if claim.args["node"] == settle.args["node"]]
        if settle.args["lease_ids"] is None and any(claim.began < settle.ended for claim in lost):
            return  # that one may have given it the job
        standing = [lease for lease in own if not self._is_stale(lease, settle)]
        if not standing:
            self._wrong(f"job {seq} is no more of who speaks of it", settle)
        for epoch in set(settle.epochs):
            if seq in self._log.places[epoch]:
                self._log.check_alive(epoch, seq, settle)

    def _is_stale(self, lease: Lease, settle: Op) -> bool:
        """Another has the job since, or nobody knows of the lease."""
        given_back = any(
            nack.outcome == OK
            and nack.ended < settle.began
            and lease.claim.ended < nack.began
            and concerns(nack, lease)
            for nack in self._held.nacks
            if nack is not settle
        )
        return self._held.is_passed_on(lease, settle) or given_back or self._held.is_forgotten(lease, settle)

    def _check_skipped(self, settle: Op, seq: int) -> None:
        """Its word did not count, so it may have held the job no more."""
        as_if = Op(settle.client, settle.kind, settle.topic, settle.args, settle.began)  # without what was skipped
        for lease in self._held.leases.get(seq, ()):
            if lease.claim.ended > settle.began or not concerns(as_if, lease):
                continue
            if not self._held.may_be_over(lease, settle) and not self._may_be_gone(seq, settle):
                self._wrong(f"job {seq} was held, by {lease.claim}", settle)

    def _may_be_gone(self, seq: int, op: Op) -> bool:
        """Whether the job may have left its queue when `op` happened."""
        place = self._place(seq, op)
        if place is None or seq in self._log.carried or self._log.may_be_lost(place, op):
            return True
        tag = self._log.tag_of(place)
        others = (delete for delete in self._log.deletes if delete is not op and delete.began < op.ended)
        return any(selects(delete, seq, tag) for delete in others)

    def _place(self, seq: int, op: Op) -> Place | None:
        return self._log.places[op.epochs[1]].get(seq)

    # --- 3: ends ----------------------------------------------------------------------------------------------------

    def _check_ends(self, lease: Lease) -> None:
        claim, seq = lease.claim, lease.seq
        place = self._place(seq, claim)
        if place is None or claim.epochs[0] != claim.epochs[1]:
            return
        self._log.check_alive(claim.epochs[1], seq, claim)
        due_ms = self._log.times[claim.epochs[1]][seq] + terms_of(self._log, place).get("delay_ms", 0)
        if claim.ended_ms < due_ms:
            self._wrong(f"job {seq} is given out before its time, {due_ms}", claim)
        for nack in self._held.nacks:
            certain = nack.outcome == OK and nack.ended < claim.began and selects_job(nack, seq)
            kept = certain and not self._held.may_be_forgotten(nack.began, claim.ended)
            if kept and claim.ended_ms < nack.began_ms + nack.args["delay_ms"]:
                self._wrong(f"job {seq} is given out before its delay is over: {nack}", claim)

    # --- 4: nothing is passed by ------------------------------------------------------------------------------------

    def _check_wait(self, claim: Op) -> None:
        jitter = max(self._log.bounds("claim_jitter_ms", claim.ended), default=0)
        letters_ms = 2 * limits.DEAD_LETTER_WAIT_MS if self._log.bounds("max_deliveries", claim.ended) else 0
        most_ms = claim.args["wait_ms"] + jitter + letters_ms + POLL_SLACK_MS
        if claim.ended_ms - claim.began_ms > most_ms:
            self._wrong(f"it took {claim.ended_ms - claim.began_ms} ms of {most_ms}", claim)

    def _check_left(self, claim: Op) -> None:
        """What it could have had: all of it, or at least nothing better than what it got."""
        given = {job["$seq"]: job for job in claim.result["claimed"]}
        if claim.epochs[0] != claim.epochs[1]:
            return
        for seq, place in self._log.places[claim.epochs[1]].items():
            if seq in given or not self._is_free(seq, place, claim, waited=not given):
                continue
            if len(given) < claim.args["max"]:
                self._wrong(f"job {seq} was there to be had", claim)
            for other in given.values():
                if self._is_better(seq, place, other, claim):
                    self._wrong(f"job {seq} should have come before {other['$seq']}", claim)

    def _is_free(self, seq: int, place: Place, claim: Op, *, waited: bool) -> bool:
        """Whether the claim could certainly have had the job: when it began, or while it waited for any."""
        by_ms = max(claim.began_ms, claim.ended_ms - POLL_SLACK_MS) if waited else claim.began_ms
        acked = any(a.outcome == OK and self._is_by(a.ended, a.ended_ms, claim, by_ms) for a in self._sent(place))
        if not acked or self._may_be_gone(seq, claim) or self._may_be_dead(seq, claim):
            return False
        return self._held.busy_until(seq, place, claim) < by_ms

    def _sent(self, place: Place) -> list[Op]:
        return self._log.attempts[place.write]

    def _is_by(self, ended: float, ended_ms: int, claim: Op, by_ms: int) -> bool:
        return ended < claim.began or (ended < claim.ended and ended_ms < by_ms)

    def _may_be_dead(self, seq: int, claim: Op) -> bool:
        """Whether it may have been delivered so often that it is on its way to the dead letters."""
        most = self._log.bounds("max_deliveries", claim.ended)
        return bool(most) and self._times_claimed(seq, claim) >= min(most)

    def _is_better(self, seq: int, place: Place, given: dict[str, int], claim: Op) -> bool:
        """More urgent, or as urgent and there before one that nobody has had. What comes back goes before those, but
        for the most urgent ones, among which it counts since when each waits."""
        priority, other = terms_of(self._log, place).get("priority", 0), given.get("priority", 0)
        if priority != other or seq > given["$seq"] or not self._is_new(given["$seq"], claim, 1):
            return priority > other
        return priority < limits.JOB_PRIORITY_MAX or self._is_new(seq, claim, 0)

    def _is_new(self, seq: int, claim: Op, claims: int) -> bool:
        place = self._place(seq, claim)
        waited = place is None or "delay_ms" in terms_of(self._log, place)
        return not waited and self._times_claimed(seq, claim) == claims

    # --- 5: deliveries ----------------------------------------------------------------------------------------------

    def _times_claimed(self, seq: int, op: Op) -> int:
        """How many claims may have had the job by then."""
        claims = {id(lease.claim) for lease in self._held.leases.get(seq, ()) if lease.claim.began < op.ended}
        return len(claims) + sum(claim.began < op.ended for claim in self._held.lost_claims)

    def _check_deliveries(self, lease: Lease, leases: list[Lease]) -> None:
        claim = lease.claim
        if not 1 <= lease.deliveries <= self._times_claimed(lease.seq, claim):
            self._wrong(f"job {lease.seq} cannot have been delivered {lease.deliveries} times", claim)
        most = self._log.bounds("max_deliveries", claim.ended)
        if most and lease.deliveries > max(most):
            self._wrong(f"job {lease.seq} is delivered more often than it may be", claim)
        for before in leases:
            if not before.is_before(lease) or self._held.may_be_forgotten(before.claim.began, claim.ended):
                continue
            least = before.deliveries + 1 - sum(1 for _ in self._refunds(before, lease))
            if lease.deliveries < least:
                self._wrong(f"job {lease.seq} was delivered {before.deliveries} times before: {before.claim}", claim)

    def _refunds(self, first: Lease, last: Lease) -> Iterator[Op]:
        """Nacks without a penalty that may have been of a delivery between the two."""
        for nack in self._held.nacks:
            about = selects_job(nack, first.seq) and not nack.args["penalty"]
            if about and nack.overlaps(first.claim.began, last.claim.ended):
                yield nack


def selects_job(settle: Op, seq: int) -> bool:
    """Whether a nack may have given this job back."""
    return seq in settle.args["seqs"] and seq not in settle.result.get("skipped", ())
