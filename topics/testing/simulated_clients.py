"""What the clients of a simulation do: anything, at random, and all of it is noted in the history."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import trio

from topics.testing.history import APPEND, DELETE, DIFF, OK, PUT, REMOVE, STATE, Op
from topics.testing.simulated_calls import Caller, Deed
from topics.testing.simulated_consumers import Consumer
from topics.testing.simulated_topics import DEAD, GROUPS, RECORDS, has_keys, has_lifetimes, is_queue
from topics.testing.simulated_workers import Worker

if TYPE_CHECKING:
    from topics.testing.simulation import Simulation

OPS_PER_CLIENT = 8
LIFETIMES_MS = (1, 20, 60, 150)
KEYS = tuple(f"k{number}" for number in range(5))
AUDIT_AFTER_S = 1.3  # by then no lease and no delay holds anything
TAGS = (None, None, "a", "a:1", "a:2", "b")
MATCHES = ("a", "a*", "a:*", "b", "*", "none")


class Client:
    def __init__(self, name: str, simulation: "Simulation", nursery: trio.Nursery) -> None:
        self._caller = Caller(name, simulation, nursery)
        self._worker = Worker(self._caller)
        self._consumer = Consumer(self._caller)
        self._kind = simulation.kind
        self._topics = simulation.topics
        self._chance = simulation.chance
        self._dice = simulation.chance.dice
        self._cursors: dict[str, int] = {}
        self._writes = 0
        self._keyed: list[tuple[str, dict[str, Any]]] = []  # to be sent again

    # --- what it does ---------------------------------------------------------------------------------------------

    async def work(self) -> None:
        writable = [topic for topic in self._topics if topic != DEAD]
        if self._chance.hits(0.6):
            await self._put(self._dice.choice(list(self._topics)))
        for _ in range(OPS_PER_CLIENT):
            await trio.sleep(self._dice.choice((0.0, 0.0, 0.0, 0.0002, 0.001, 0.01, 0.3)))
            topic = self._dice.choice(writable)
            await self._dice.choice(self._deeds(topic))(topic)

    def _deeds(self, topic: str) -> list[Deed]:
        """What may be done to a topic, each as often as it is likely."""
        rare: list[Deed] = [self._put, self._state, self._checkpoint]
        if is_queue(self._topics[topic]):
            seldom: list[Deed] = [self._again, self._diff, self._delete, self._read_dead]
            return [*rare, *seldom, *[self._append] * 7, *self._worker.deeds()]
        if self._kind == GROUPS:
            return [*rare, self._diff, self._delete, *[self._append] * 8, *self._consumer.deeds()]
        often = [self._append] * 10 + [self._again] * 3 + [self._diff] * 8 + [self._delete] * 3
        return [*rare, *often, self._remove]

    async def _append(self, topic: str) -> None:
        dice = self._dice
        if has_keys(topic):
            await self._append_once(topic)
            return
        count = dice.choice((1, 1, 1, 2, 3, 9))
        args: dict[str, Any] = {
            "write": f"{self._caller.name}-{self._writes}",
            "tags": [dice.choice(TAGS) for _ in range(count)],
            "node": dice.choice((None, None, "n1")),
            "keyed": dice.random() < 0.5,
            "filler": "x" * dice.choice((0, 0, 10, 80)),
            "config": self._topics[topic] if dice.random() < 0.8 else None,
        }
        if is_queue(self._topics[topic]):
            args["terms"] = self._worker.terms(topic, count)
        elif has_lifetimes(topic):
            args["terms"] = [{"ttl_ms": dice.choice(LIFETIMES_MS)} if dice.random() < 0.6 else {} for _ in range(count)]
        self._writes += 1
        if args["keyed"]:
            self._keyed.append((topic, args))
        await self._send_append(topic, args)

    async def _append_once(self, topic: str) -> None:
        """Records that say which ones they are; others send them, too."""
        keys = [self._dice.choice(KEYS) for _ in range(self._dice.choice((1, 1, 2, 4)))]
        config = self._topics[topic] if self._dice.random() < 0.8 else None
        records = [{"data": [key, 0], "dedup_key": key} for key in keys]
        body = {"records": records, "create": config is not None}
        body |= {"config": config} if config is not None else {}
        await self._caller.call(APPEND, topic, {"keys": keys, "config": config}, body)

    async def _again(self, topic: str) -> None:
        """Send a write again, as if its answer had never come; perhaps it has not."""
        if self._keyed:
            await self._send_append(*self._dice.choice(self._keyed[-3:]))

    async def _send_append(self, topic: str, args: dict[str, Any]) -> None:
        terms = args.get("terms") or [{}] * len(args["tags"])
        records = [
            {"data": [args["write"], n, args["filler"]], **({"tag": tag} if tag is not None else {}), **terms[n]}
            for n, tag in enumerate(args["tags"])
        ]
        body = {"records": records, "create": args["config"] is not None}
        body |= {"node": args["node"]} if args["node"] else {}
        body |= {"idempotency_key": args["write"]} if args["keyed"] else {}
        body |= {"config": args["config"]} if args["config"] is not None else {}
        await self._caller.call(APPEND, topic, args, body)

    async def _diff(self, topic: str) -> None:
        dice = self._dice
        cursor = self._cursors.get(topic, 0)
        from_seq = cursor if dice.random() < 0.6 else dice.choice((0, self._caller.some_seq(topic)))
        await self._read(topic, from_seq, dice.choice((1, 3, 1000)), dice.choice((0, 0, 0, 40, 700)))

    async def _read_dead(self, topic: str) -> None:
        await self._diff(DEAD if DEAD in self._topics else topic)

    async def _read(self, topic: str, from_seq: int, limit: int, wait_ms: int) -> Op:
        node = self._dice.choice((None, None, "n1"))
        args = {"from_seq": from_seq, "limit": limit, "wait_ms": wait_ms, "node": node}
        body = {"from_seq": from_seq, "limit": limit, "wait_ms": wait_ms, "include_tags": True}
        op = await self._caller.call(DIFF, topic, args, body | ({"node": node} if node else {}))
        if op.outcome == OK:
            self._cursors[topic] = op.result["next_from_seq"]
        return op

    async def _delete(self, topic: str) -> None:
        args: dict[str, Any] = {}
        if self._chance.hits(0.7):
            args["match"] = self._dice.choice(MATCHES)
        if not args or self._chance.hits(0.4):
            args["before_seq"] = self._caller.some_seq(topic)
        await self._caller.call(DELETE, topic, args, args)

    async def _put(self, topic: str) -> None:
        config = dict(self._topics[topic])
        if topic == "changing":
            config["durability"] = self._dice.choice(("fsync", "disk", "memory", "ephemeral"))
        if self._chance.hits(0.5):
            config["priority"] = self._dice.randint(0, 9)
        if topic in ("capped", "changing"):
            config["cap_records"] = self._dice.choice((0, 3, 6))
        await self._caller.call(PUT, topic, {"config": config}, config)

    async def _state(self, topic: str) -> None:
        await self._caller.call(STATE, topic, {}, {})

    async def _remove(self, topic: str) -> None:
        if_empty = self._chance.hits(0.5)
        await self._caller.call(REMOVE, topic, {"if_empty": if_empty}, {}, if_empty=if_empty)

    async def _checkpoint(self, topic: str) -> None:
        await self._caller.call("checkpoint", "", {}, {})

    # --- at the end -----------------------------------------------------------------------------------------------

    async def audit(self) -> None:
        """Take every job, when nobody holds any, read everything from the beginning, and count it."""
        if any(is_queue(config) for config in self._topics.values()):
            await trio.sleep(AUDIT_AFTER_S)
        elif self._kind == RECORDS:
            await trio.sleep(max(LIFETIMES_MS) / 1000)
        for topic, config in self._topics.items():
            if self._kind == GROUPS:
                await self._consumer.audit(topic)
            taken = await self._worker.audit(topic) if is_queue(config) else None
            seen = await self._read_all(topic)
            state = await self._caller.call(STATE, topic, {}, {}, patient=True)
            if seen is None:
                continue
            if state.outcome == OK and state.result["count"] != len(seen) and "ttl_ms" not in config:
                self._complain(f"{topic}: {len(seen)} records were read, not as many as it says: {state}")
            if taken is not None and not seen <= taken and not self._caller.simulation.short_of_room:
                self._complain(f"{topic}: jobs are there that nobody can claim: {seen - taken}")

    def _complain(self, what: str) -> None:
        self._caller.simulation.problems.append(what)

    async def _read_all(self, topic: str) -> set[int] | None:
        """The seqs of the records that are there; None if they could not be read."""
        at, seen = -1, set[int]()
        page: Mapping[str, Any] = {"next_from_seq": 0, "head_seq": 1}
        while page and at < page["next_from_seq"] < page["head_seq"]:
            at = page["next_from_seq"]
            args = {"from_seq": at, "limit": self._dice.choice((2, 1000)), "wait_ms": 0}
            page = (await self._caller.call(DIFF, topic, args, args | {"include_tags": True}, patient=True)).result
            seen |= {record["$seq"] for record in page.get("records", ())}
        return seen if page else None
