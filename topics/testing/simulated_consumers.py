"""Consumers of groups in a simulation: they fetch, acknowledge, seek, and take one another's groups over."""

from typing import Any

from topics.testing.history import ACK_GROUP, FETCH, GROUP_STATE, OK, PUT_GROUP, REMOVE_GROUP, SEEK
from topics.testing.simulated_calls import Caller, Deed

GROUPS = ("g", "g", "h")


class Consumer:
    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._chance = caller.chance
        self._dice = caller.dice
        self._name: str | None = caller.name
        self._names = 0
        self._read: dict[tuple[str, str], int] = {}  # how far, by topic and group

    def deeds(self) -> list[Deed]:
        common: list[Deed] = [*[self._fetch] * 7, *[self._ack] * 6]
        return [*common, self._seek, self._seek, self._look, self._put, self._remove]

    def _who(self) -> dict[str, str]:
        """Mostly as before, sometimes as somebody new, or nobody."""
        if self._chance.hits(0.15):
            self._names += 1
            self._name = f"{self._caller.name}.{self._names}"
        return {"consumer": self._name} if self._name is not None and self._chance.hits(0.7) else {}

    async def _fetch(self, topic: str) -> None:
        dice, group = self._dice, self._dice.choice(GROUPS)
        args: dict[str, Any] = {
            "limit": dice.choice((1, 3, 1000)),
            "wait_ms": dice.choice((0, 0, 40, 300)),
            **self._who(),
        }
        if "consumer" in args and self._chance.hits(0.3):
            args["take_over"] = True
        body = args | {"from": 0, "include_tags": True}
        op = await self._caller.call(FETCH, topic, {"group": group, **args}, body, group=group)
        if op.outcome != OK:
            return
        seq = self._read[topic, group] = op.result["next_from_seq"]
        if op.result["records"] and self._chance.hits(0.7):  # as readers do; an ack that moves nothing cannot be lost
            await self._send(ACK_GROUP, topic, group, {"seq": seq, **self._who()})

    async def _ack(self, topic: str) -> None:
        group = self._dice.choice(GROUPS)
        seq = self._read.get((topic, group), 0) if self._chance.hits(0.8) else self._caller.some_seq(topic)
        await self._send(ACK_GROUP, topic, group, {"seq": seq, **self._who()})

    async def _seek(self, topic: str) -> None:
        to = self._dice.choice((0, self._caller.some_seq(topic), "earliest", "latest"))
        await self._send(SEEK, topic, self._dice.choice(GROUPS), {"to": to, **self._who()})

    async def _look(self, topic: str) -> None:
        await self._send(GROUP_STATE, topic, self._dice.choice(GROUPS), {})

    async def _put(self, topic: str) -> None:
        await self._send(PUT_GROUP, topic, self._dice.choice(GROUPS), {"from": 0})

    async def _remove(self, topic: str) -> None:
        await self._send(REMOVE_GROUP, topic, self._dice.choice(GROUPS), {})

    async def _send(self, kind: str, topic: str, group: str, args: dict[str, Any], *, patient: bool = False) -> None:
        await self._caller.call(kind, topic, {"group": group, **args}, args, patient=patient, group=group)

    async def audit(self, topic: str) -> None:
        """Where every group is at the end."""
        for group in sorted(set(GROUPS)):
            await self._send(GROUP_STATE, topic, group, {}, patient=True)
