"""One client's calls in a simulation: connected to whichever life of the shard serves, each noted in the history."""

import json
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import trio

from topics import errors
from topics.errors import TopicsError
from topics.rpc import Connection
from topics.testing.history import OK, REFUSED, UNKNOWN, Op

if TYPE_CHECKING:
    from topics.testing.simulation import Life, Simulation

PATIENCE_S = 60.0  # virtual; a call that is not answered by then never will be
Deed = Callable[[str], Coroutine[Any, Any, None]]  # something that a client does to a topic
UNSURE = (errors.NOT_READY, errors.INTERNAL)  # with these a write may have happened


class Caller:
    def __init__(self, name: str, simulation: "Simulation", nursery: trio.Nursery) -> None:
        self.name = name
        self.simulation = simulation
        self.chance = simulation.chance
        self.dice = simulation.chance.dice
        self.heads: dict[str, int] = {}
        self._nursery = nursery
        self._life: Life | None = None
        self._connection: Connection

    async def call(
        self, kind: str, topic: str, args: dict[str, Any], body: dict[str, Any], *, patient: bool = False, **head: Any
    ) -> Op:
        simulation = self.simulation
        life = await self._connected()
        life.count_op()
        op = Op(self.name, kind, topic, args, simulation.step(), simulation.clock.now_ms())
        simulation.say(f"{self.name} {kind} {topic} {json.dumps(args)}")
        given_up = self.dice.choice((0.0, 0.001, 0.01)) if not patient and self.chance.hits(0.05) else PATIENCE_S
        with trio.move_on_after(given_up) as scope:
            await self._answer(op, {"topic": topic, **head}, json.dumps(body).encode())
        if scope.cancelled_caught and given_up == PATIENCE_S:
            simulation.problems.append(f"never answered: {op}")
        simulation.say(f"{self.name} … {kind} {topic} {op.outcome} {op.error} {json.dumps(op.result)} {op.epochs}")
        if kind != "checkpoint":
            simulation.history.ops.append(op)
        self.heads[topic] = max(self.heads.get(topic, 0), op.result.get("head_seq", 0))
        return op

    async def _answer(self, op: Op, head: dict[str, Any], body: bytes) -> None:
        simulation = self.simulation
        try:
            reply = await self._connection.call(op.kind, head, body)
        except TopicsError as error:
            op.outcome, op.error = UNKNOWN if error.code in UNSURE else REFUSED, error.code
            if error.code == errors.INTERNAL and not simulation.disk.failed_reads:
                simulation.problems.append(f"{error!r}: {op}")
        else:
            op.outcome = OK
            op.result = json.loads(bytes(reply.body) + b"}") if reply.body else {}
            op.epochs = tuple(reply.head["epochs"])
        if op.outcome != UNKNOWN:
            op.ended, op.ended_ms = simulation.step(), simulation.clock.now_ms()

    async def _connected(self) -> "Life":
        while True:
            life = await self.simulation.ready_life()
            if life is self._life and self._connection.reason is None:
                return life
            try:
                self._connection = await life.connect(self._nursery)
            except TopicsError:
                await trio.sleep(0.01)
            else:
                self._life = life

    def some_seq(self, topic: str) -> int:
        head = self.heads.get(topic, 0)
        return self.dice.choice((head, head + 1, self.dice.randint(0, head + 2)))
