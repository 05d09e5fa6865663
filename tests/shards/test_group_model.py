"""Consumer groups on a disk that loses power, against a naive model.

Whatever happens in whatever order: a cursor is where it was last put, whoever was taken over from is refused, what a
fetch gives is what comes after the cursor, and a group goes with its topic. Over every crash all that was answered
stands.
"""

from typing import Any

import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.shards.queue_shard import QueueShard, serving
from topics import limits
from topics.errors import TopicsError
from topics.testing.fake_clock import FakeClock
from topics.testing.faulty_files import FaultyFiles

TOPICS: dict[str, dict[str, Any]] = {
    "safe": {"durability": "fsync"},
    "capped": {"durability": "fsync", "cap_records": 3},
}
topics, names = st.sampled_from(sorted(TOPICS)), st.sampled_from(["g", "h"])
consumers = st.sampled_from([None, *"aaabcdefghijkl"])  # more than a group remembers
ops = st.one_of(
    st.tuples(st.just("append"), topics, st.integers(1, 4)),
    st.tuples(st.just("put"), topics, names, st.sampled_from(["earliest", "latest"])),
    st.tuples(st.just("fetch"), topics, names, consumers, st.booleans(), st.sampled_from(["earliest", "latest"])),
    st.tuples(st.just("ack"), topics, names, consumers, st.integers(0, 12)),
    st.tuples(st.just("seek"), topics, names, consumers, st.sampled_from(["earliest", "latest", 0, 1, 3, 9])),
    st.tuples(st.just("remove"), topics, names),
    st.tuples(st.just("remove topic"), topics),
    st.tuples(st.just("checkpoint")),
)
lives = st.lists(
    st.tuples(st.lists(ops, max_size=25), st.sampled_from(["stop", "kill", "power loss"])), min_size=1, max_size=4
)


class Model:
    """By topic: its head and its groups, each [cursor, consumer, those it was taken over from]."""

    def __init__(self) -> None:
        self.heads = dict.fromkeys(TOPICS, 0)
        self.groups: dict[str, dict[str, list[Any]]] = {topic: {} for topic in TOPICS}

    def earliest(self, topic: str) -> int:
        kept: int = TOPICS[topic].get("cap_records", 10**9)
        return max(1, self.heads[topic] - kept + 1)

    def cursor(self, topic: str, where: Any) -> int | None:
        """None: it is refused."""
        if where == "earliest":
            return self.earliest(topic) - 1
        if where == "latest":
            return self.heads[topic]
        return where if where <= self.heads[topic] else None

    def enter(self, group: list[Any], consumer: str | None, *, back: bool = False) -> bool:
        """Whether the consumer may go on; it is the active one then."""
        if consumer is None or consumer == group[1]:
            return True
        if consumer in group[2] and not back:
            return False
        before = [*group[2], *([group[1]] if group[1] else [])]
        group[1], group[2] = consumer, [other for other in before if other != consumer][-limits.GROUP_LEFT_MAX :]
        return True


class Run:
    def __init__(self, shard: QueueShard, model: Model) -> None:
        self.shard = shard
        self.model = model

    async def step(self, what: str, *args: Any) -> None:
        if what == "checkpoint":
            await self.shard.shard.checkpoint()
        else:
            await getattr(self, what.replace(" ", "_"))(*args)

    async def ask(self, call: str, topic: str, group: str, consumer: str | None = None, **body: Any) -> Any:
        """The answer, or the code of the refusal."""
        if consumer is not None:
            body["consumer"] = consumer
        try:
            return await self.shard.call(f"group.{call}", topic, body, group=group)
        except TopicsError as error:
            return error.code

    async def append(self, topic: str, count: int) -> None:
        seqs = await self.shard.produce(*range(count), topic=topic)
        self.model.heads[topic] += count
        assert seqs[-1] == self.model.heads[topic]

    async def put(self, topic: str, name: str, start: str) -> None:
        groups = self.model.groups[topic]
        answer = await self.ask("put", topic, name, **{"from": start})
        assert answer["created"] is (name not in groups)
        groups.setdefault(name, [self.model.cursor(topic, start), "", []])
        assert answer["cursor_seq"] == groups[name][0]

    async def fetch(self, topic: str, name: str, consumer: str | None, back: bool, start: str) -> None:
        model, groups = self.model, self.model.groups[topic]
        group = groups.setdefault(name, [model.cursor(topic, start), consumer or "", []])
        more = {"take_over": True} if back and consumer else {}
        answer = await self.ask("fetch", topic, name, consumer, **{"from": start}, **more)
        if not model.enter(group, consumer, back=back):
            assert answer == "taken_over"
            return
        assert answer["cursor_seq"] == group[0]
        first = max(group[0] + 1, model.earliest(topic))
        assert [record["$seq"] for record in answer["records"]] == list(range(first, model.heads[topic] + 1))
        assert (answer["tombstone"] is not None) is (group[0] + 1 < model.earliest(topic))
        assert answer["lag"] == model.heads[topic] - answer["next_from_seq"]

    async def ack(self, topic: str, name: str, consumer: str | None, seq: int) -> None:
        await self._move("ack", topic, name, consumer, seq, {"seq": seq})

    async def seek(self, topic: str, name: str, consumer: str | None, to: Any) -> None:
        await self._move("seek", topic, name, consumer, self.model.cursor(topic, to), {"to": to})

    async def _move(self, what: str, topic: str, name: str, consumer: str | None, to: int | None, body: Any) -> None:
        model, group = self.model, self.model.groups[topic].get(name)
        answer = await self.ask(what, topic, name, consumer, **body)
        if group is None:
            assert answer == "group_not_found"
        elif consumer is not None and group[1] not in ("", consumer):
            assert answer == "taken_over"
        elif to is None or to > model.heads[topic]:
            assert answer == "invalid_request"
        else:
            model.enter(group, consumer)
            group[0] = max(group[0], to) if what == "ack" else to
            assert (answer["cursor_seq"], answer["lag"]) == (group[0], model.heads[topic] - group[0])

    async def remove(self, topic: str, name: str) -> None:
        answer = await self.ask("remove", topic, name)
        assert answer["deleted"] is (self.model.groups[topic].pop(name, None) is not None)

    async def remove_topic(self, topic: str) -> None:
        await self.shard.call("remove", topic)
        await self.shard.call("put", topic, TOPICS[topic])
        self.model.heads[topic], self.model.groups[topic] = 0, {}

    async def compare(self) -> None:
        for topic, groups in self.model.groups.items():
            state = await self.shard.call("state", topic)
            shown = {name: (one["cursor_seq"], one["consumer"] or "") for name, one in state.get("groups", {}).items()}
            assert shown == {name: (cursor, consumer) for name, (cursor, consumer, _) in groups.items()}


async def _run(history: Any) -> None:
    model, clock, files = Model(), FakeClock(), FaultyFiles()
    for number, (steps, end) in enumerate(history):
        async with serving(files, clock, crash=end != "stop") as shard:
            for topic, config in TOPICS.items():
                await shard.call("put", topic, config)
            run = Run(shard, model)
            await run.compare()
            for step in steps:
                await run.step(*step)
            await run.compare()
        if end != "stop":
            files = files.crash(number, power_loss=end == "power loss")
    async with serving(files, clock) as shard:
        await Run(shard, model).compare()


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(lives)
def test_any_history_over_any_end(history):
    trio.run(_run, history)
