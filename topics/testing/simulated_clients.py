"""What the clients of a simulation do: anything, at random, and all of it is noted in the history."""

import json
import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import trio

from topics import errors
from topics.errors import TopicsError
from topics.rpc import Connection
from topics.testing.history import APPEND, DELETE, DIFF, OK, PUT, REFUSED, REMOVE, STATE, UNKNOWN, Op

if TYPE_CHECKING:
    from topics.testing.simulation import Life, Simulation

OPS_PER_CLIENT = 8
PATIENCE_S = 60.0  # virtual; a call that is not answered by then never will be
TAGS = (None, None, "a", "a:1", "a:2", "b")
MATCHES = ("a", "a*", "a:*", "b", "*", "none")
# What may be lost is told by these, so a topic keeps its class; only one changes it.
CONFIGS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("safe", {"durability": "fsync"}),
    ("safe-too", {"durability": "fsync"}),
    ("capped", {"durability": "fsync", "cap_records": 4}),
    ("dying", {"durability": "fsync", "ttl_ms": 30}),
    ("disk", {"durability": "disk"}),
    ("disk-capped", {"durability": "disk", "cap_bytes": 300}),
    ("memory", {"durability": "memory"}),
    ("ephemeral", {"durability": "ephemeral"}),
    ("changing", {"durability": "disk"}),
)
UNSURE = (errors.NOT_READY, errors.INTERNAL)  # with these a write may have happened


def pick_topics(dice: random.Random) -> dict[str, dict[str, Any]]:
    """Few, so that clients meet."""
    picked = dict(dice.sample(CONFIGS, dice.randint(1, 3)))
    return picked if dice.random() < 0.5 else picked | {"safe": {"durability": "fsync"}}


class Client:
    def __init__(self, name: str, simulation: "Simulation", nursery: trio.Nursery) -> None:
        self.name = name
        self._simulation = simulation
        self._chance = simulation.chance
        self._dice = simulation.chance.dice
        self._nursery = nursery
        self._life: Life | None = None
        self._connection: Connection
        self._cursors: dict[str, int] = {}
        self._heads: dict[str, int] = {}
        self._writes = 0
        self._keyed: list[tuple[str, dict[str, Any]]] = []  # to be sent again

    # --- what it does ---------------------------------------------------------------------------------------------

    async def work(self) -> None:
        deeds = (
            [self._append] * 10 + [self._again] * 3 + [self._diff] * 8 + [self._delete] * 3
            + [self._put, self._state, self._checkpoint, self._remove]
        )  # fmt: skip
        if self._chance.hits(0.6):
            await self._put(self._dice.choice(list(self._simulation.topics)))
        for _ in range(OPS_PER_CLIENT):
            await trio.sleep(self._dice.choice((0.0, 0.0, 0.0, 0.0002, 0.001, 0.01, 0.3)))
            await self._dice.choice(deeds)(self._dice.choice(list(self._simulation.topics)))

    async def _append(self, topic: str) -> None:
        dice = self._dice
        count = dice.choice((1, 1, 1, 2, 3, 9))
        args: dict[str, Any] = {
            "write": f"{self.name}-{self._writes}",
            "tags": [dice.choice(TAGS) for _ in range(count)],
            "node": dice.choice((None, None, "n1")),
            "keyed": dice.random() < 0.5,
            "filler": "x" * dice.choice((0, 0, 10, 80)),
            "config": self._simulation.topics[topic] if dice.random() < 0.8 else None,
        }
        self._writes += 1
        if args["keyed"]:
            self._keyed.append((topic, args))
        await self._send_append(topic, args)

    async def _again(self, topic: str) -> None:
        """Send a write again, as if its answer had never come; perhaps it has not."""
        if self._keyed:
            await self._send_append(*self._dice.choice(self._keyed[-3:]))

    async def _send_append(self, topic: str, args: dict[str, Any]) -> None:
        records = [
            {"data": [args["write"], n, args["filler"]], **({"tag": tag} if tag is not None else {})}
            for n, tag in enumerate(args["tags"])
        ]
        body = {"records": records, "create": args["config"] is not None}
        body |= {"node": args["node"]} if args["node"] else {}
        body |= {"idempotency_key": args["write"]} if args["keyed"] else {}
        body |= {"config": args["config"]} if args["config"] is not None else {}
        await self._call(APPEND, topic, args, body)

    async def _diff(self, topic: str) -> None:
        dice = self._dice
        from_seq = self._cursors.get(topic, 0) if dice.random() < 0.6 else dice.choice((0, self._some_seq(topic)))
        await self._read(topic, from_seq, dice.choice((1, 3, 1000)), dice.choice((0, 0, 0, 40, 700)))

    async def _read(self, topic: str, from_seq: int, limit: int, wait_ms: int) -> Op:
        node = self._dice.choice((None, None, "n1"))
        args = {"from_seq": from_seq, "limit": limit, "wait_ms": wait_ms, "node": node}
        body = {"from_seq": from_seq, "limit": limit, "wait_ms": wait_ms, "include_tags": True}
        op = await self._call(DIFF, topic, args, body | ({"node": node} if node else {}))
        if op.outcome == OK:
            self._cursors[topic] = op.result["next_from_seq"]
        return op

    async def _delete(self, topic: str) -> None:
        args: dict[str, Any] = {}
        if self._chance.hits(0.7):
            args["match"] = self._dice.choice(MATCHES)
        if not args or self._chance.hits(0.4):
            args["before_seq"] = self._some_seq(topic)
        await self._call(DELETE, topic, args, args)

    def _some_seq(self, topic: str) -> int:
        head = self._heads.get(topic, 0)
        return self._dice.choice((head, head + 1, self._dice.randint(0, head + 2)))

    async def _put(self, topic: str) -> None:
        config = dict(self._simulation.topics[topic])
        if topic == "changing":
            config["durability"] = self._dice.choice(("fsync", "disk", "memory", "ephemeral"))
        if self._chance.hits(0.5):
            config["priority"] = self._dice.randint(0, 9)
        if topic in ("capped", "changing"):
            config["cap_records"] = self._dice.choice((0, 3, 6))
        await self._call(PUT, topic, {"config": config}, config)

    async def _state(self, topic: str) -> None:
        await self._call(STATE, topic, {}, {})

    async def _remove(self, topic: str) -> None:
        if_empty = self._chance.hits(0.5)
        await self._call(REMOVE, topic, {"if_empty": if_empty}, {}, if_empty=if_empty)

    async def _checkpoint(self, topic: str) -> None:
        await self._call("checkpoint", "", {}, {})

    async def audit(self) -> None:
        """Read everything from the beginning, and count it."""
        for topic, config in self._simulation.topics.items():
            at, live = -1, 0
            page: Mapping[str, Any] = {"next_from_seq": 0, "head_seq": 1}
            while page and at < page["next_from_seq"] < page["head_seq"]:
                at = page["next_from_seq"]
                args = {"from_seq": at, "limit": self._dice.choice((2, 1000)), "wait_ms": 0}
                page = (await self._call(DIFF, topic, args, args | {"include_tags": True}, patient=True)).result
                live += len(page.get("records", ()))
            state = await self._call(STATE, topic, {}, {}, patient=True)
            if page and state.outcome == OK and state.result["count"] != live and "ttl_ms" not in config:
                self._simulation.problems.append(f"{topic}: {live} records were read, not as many as it says: {state}")

    # --- calls ----------------------------------------------------------------------------------------------------

    async def _call(
        self, kind: str, topic: str, args: dict[str, Any], body: dict[str, Any], *, patient: bool = False, **head: Any
    ) -> Op:
        simulation = self._simulation
        life = await self._connected()
        life.count_op()
        op = Op(self.name, kind, topic, args, simulation.step(), simulation.clock.now_ms())
        simulation.say(f"{self.name} {kind} {topic} {json.dumps(args)}")
        given_up = self._dice.choice((0.0, 0.001, 0.01)) if not patient and self._chance.hits(0.05) else PATIENCE_S
        with trio.move_on_after(given_up) as scope:
            await self._answer(op, {"topic": topic, **head}, json.dumps(body).encode())
        if scope.cancelled_caught and given_up == PATIENCE_S:
            simulation.problems.append(f"never answered: {op}")
        simulation.say(f"{self.name} … {kind} {topic} {op.outcome} {op.error} {json.dumps(op.result)} {op.epochs}")
        if kind != "checkpoint":
            simulation.history.ops.append(op)
        self._heads[topic] = max(self._heads.get(topic, 0), op.result.get("head_seq", 0))
        return op

    async def _answer(self, op: Op, head: dict[str, Any], body: bytes) -> None:
        simulation = self._simulation
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
            life = await self._simulation.ready_life()
            if life is self._life and self._connection.reason is None:
                return life
            try:
                self._connection = await life.connect(self._nursery)
            except TopicsError:
                await trio.sleep(0.01)
            else:
                self._life = life
