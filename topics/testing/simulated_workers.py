"""Workers of queues in a simulation: they claim jobs, finish some, give others back, and go on with leases that they
have lost. Some share a name."""

from typing import Any, NamedTuple

from topics.testing.history import ACK, CLAIM, EXTEND, NACK, OK, Op
from topics.testing.simulated_calls import Caller, Deed
from topics.testing.simulated_topics import Config

LEASES_MS = (100, 100, 150, 400)  # at least 100 is what a server grants
DELAYS_MS = (0, 0, 30, 250)
AUDIT_CLAIMS = 12


class Held(NamedTuple):
    """What a worker was given, and perhaps has no more."""

    topic: str
    seq: int
    lease_id: str
    node: str


class Worker:
    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._chance = caller.chance
        self._dice = caller.dice
        self._held: list[Held] = []

    def deeds(self) -> list[Deed]:
        return [*[self._claim] * 8, *[self._ack] * 5, *[self._nack] * 4, *[self._extend] * 3]

    def terms(self, topic: str, count: int) -> list[dict[str, int]]:
        """What jobs ask for, one by one. Priorities only where they do not grow, so that their order is known."""
        dice, terms = self._dice, []
        ranked = "priority_age_ms" in self._config(topic)
        for _ in range(count):
            term = {"priority": dice.choice((0, 1, 5, 9))} if ranked and dice.random() < 0.6 else {}
            terms.append(term | ({"delay_ms": dice.choice((5, 200))} if dice.random() < 0.15 else {}))
        return terms

    def _config(self, topic: str) -> Config:
        return self._caller.simulation.topics[topic]

    # --- what it does ---------------------------------------------------------------------------------------------

    async def _claim(self, topic: str) -> None:
        dice = self._dice
        args = {
            "node": dice.choice((self._caller.name, self._caller.name, "w")),
            "max": dice.choice((1, 1, 2, 5)),
            "lease_ms": dice.choice((None, *LEASES_MS)),
            "wait_ms": dice.choice((0, 0, 0, 30, 400)),
        }
        await self._take(topic, args)

    async def _take(self, topic: str, args: dict[str, Any], *, patient: bool = False) -> Op:
        body = {name: value for name, value in args.items() if value is not None}
        if args["lease_ms"] is None:
            args["lease_ms"] = self._config(topic)["lease_ms"]
        op = await self._caller.call(CLAIM, topic, args, body, patient=patient)
        if op.outcome == OK:
            self._held += [Held(topic, job["$seq"], job["lease_id"], args["node"]) for job in op.result["claimed"]]
        return op

    async def _ack(self, topic: str) -> None:
        await self._settle(ACK, topic, {})

    async def _nack(self, topic: str) -> None:
        await self._settle(NACK, topic, {"delay_ms": self._dice.choice(DELAYS_MS), "penalty": self._chance.hits(0.7)})

    async def _extend(self, topic: str) -> None:
        await self._settle(EXTEND, topic, {"lease_ms": self._dice.choice(LEASES_MS)})

    async def _settle(self, kind: str, topic: str, more: dict[str, Any]) -> None:
        """Say something about jobs of one name, or claim some if there are none."""
        mine = [held for held in self._held[-6:] if held.topic == topic]
        if not mine:
            await self._claim(topic)
            return
        first = self._dice.choice(mine)
        same = [held for held in mine if held.node == first.node and held.seq != first.seq and self._chance.hits(0.5)]
        chosen = list({held.seq: held for held in [*same, first]}.values())
        args = {
            "node": first.node,
            "seqs": [held.seq for held in chosen],
            "lease_ids": [held.lease_id for held in chosen] if self._chance.hits(0.6) else None,
            **more,
        }
        body = {name: value for name, value in args.items() if value is not None}
        await self._caller.call(kind, topic, args, body)
        if kind != EXTEND and self._chance.hits(0.8):  # else it says so once more
            self._held = [held for held in self._held if held not in chosen]

    # --- at the end -----------------------------------------------------------------------------------------------

    async def audit(self, topic: str) -> set[int] | None:
        """Take all jobs, when nobody holds any; None if that cannot be told. Dead letters take a few claims to go."""
        taken: set[int] = set()
        for _ in range(AUDIT_CLAIMS):
            args = {"node": "auditor", "max": 1000, "lease_ms": 500, "wait_ms": 0}
            op = await self._take(topic, args, patient=True)
            if op.outcome != OK:
                return None
            taken |= {job["$seq"] for job in op.result["claimed"]}
            if not op.result["ready"]:
                return taken
        return taken
