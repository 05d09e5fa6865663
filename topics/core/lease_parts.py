"""What leases are made of: one of them, what a claim gives out, why a job failed, and where one is moved to."""

import msgspec


class Lease(msgspec.Struct, gc=False):
    number: int
    node: str
    deadline: int
    owner: int = 0  # the stream it was pushed on; 0: it was claimed
    noted: int = 0  # when to look whether it has ended: not behind its deadline


class Grant(msgspec.Struct, gc=False):
    """Jobs that one claimer gets, under consecutive lease numbers."""

    node: str
    number: int
    deadline: int
    seqs: list[int]
    owner: int = 0
    codes: bytes = b""  # with a line: what each was before, see `codes_of`


class Move(msgspec.Struct, frozen=True):
    """A job on its way to the dead-letter topic, or a dead letter on its way back."""

    dest: str
    deliveries: int
    since: int  # when that was decided
    reason: str = ""
    failed: int = 0  # when it last failed
    back: bool = False


class Failure(msgspec.Struct, frozen=True, gc=False):
    """Why a job was last given back, and when."""

    reason: str
    ts: int


FIRST, AGAIN = 254, 255  # codes of jobs that were free: never leased before, or leased before. Below: the priority
EXPIRED, DISCONNECTED, GIVEN_BACK = "lease expired", "worker disconnected", "given back without a reason"
UNKNOWN = "unknown"
