"""A program's database against a server: the same random history, and every answer and refusal the same.

The database is closed and opened in between, which must show in nothing.
"""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

import topics
from topics.client import ApiError, Client
from topics.embedded import Database
from topics.errors import TopicsError
from topics.testing.server import Server

# What differs between two instances that do the same: time, and what is random.
OWN = {"$ts", "performance", "last_write_ts", "last_read_ts", "effective_priority", "created_ts", "updated_ts"}
LONG_MS = 3_600_000

names = st.sampled_from(["a", "b"])
queues = st.sampled_from(["q", "r"])
tags = st.sampled_from([None, "x", "x:1", "y"])
groups = st.sampled_from(["g", "h", "none"])
consumers = st.sampled_from([None, "one", "two"])
places = ("earliest", "latest")
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
records = st.lists(
    st.builds(lambda data, tag: {"data": data} | ({"tag": tag} if tag else {}), values, tags), min_size=0, max_size=4
)
configs = st.fixed_dictionaries(
    {},
    optional={
        "cap_records": st.sampled_from([0, 3, 10]),
        "discard": st.sampled_from(["old", "reject"]),
        "durable": st.booleans(),
        "cap_bytes": st.sampled_from([0, 500]),
    },
)


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("model"), shards=2) as made:
        yield made.start().wait_ready()


def shown(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: shown(inner) for name, inner in value.items() if name not in OWN}
    return [shown(inner) for inner in value] if isinstance(value, list) else value


def outcome(call: Callable[[], Any]) -> Any:
    """An answer, or the code and the detail of a refusal."""
    try:
        return shown(call())
    except (TopicsError, ApiError) as error:
        return error.code, shown(error.detail)


class Twins(RuleBasedStateMachine):
    server: Server

    @initialize()
    def begin(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.client = Client(self.server.url)
        self.db = topics.open(Path(self.folder.name) / "data", shards=2)
        self.keys = 0
        self.same(lambda api: api.put_topic("q", type="queue", lease_ms=LONG_MS))
        self.append("a", [{"data": value} for value in range(4)], True)  # so that less is refused
        self.append("q", [{"data": value} for value in range(4)], True)
        self.same(lambda api: api.put_group("a", "g"))

    def teardown(self) -> None:
        if hasattr(self, "db"):
            self.db.close()
            self.folder.cleanup()
            for router in list(self.client.routers()):
                self.client.remove_router(router["router"])
            for topic in list(self.client.topics()):
                self.client.remove_topic(topic["topic"])
            self.client.close()

    def same(self, call: Callable[[Client | Database], Any]) -> Any:
        ours, theirs = outcome(lambda: call(self.db)), outcome(lambda: call(self.client))
        assert ours == theirs
        return ours

    @rule(name=names, config=configs)
    def configure(self, name, config):
        self.same(lambda api: api.put_topic(name, **config))

    @rule(name=queues, deliveries=st.sampled_from([0, 2]))
    def make_queue(self, name, deliveries):
        self.same(lambda api: api.put_topic(name, type="queue", lease_ms=LONG_MS, max_deliveries=deliveries))

    @rule(name=names | queues, records=records, create=st.booleans())
    def append(self, name, records, create):
        self.keys += 1
        key = f"k{self.keys}"
        self.same(lambda api: api.append(name, records, create=create, idempotency_key=key))

    @precondition(lambda self: self.keys)
    @rule(name=names, records=records, age=st.integers(0, 3))
    def append_again(self, name, records, age):
        self.same(lambda api: api.append(name, records, idempotency_key=f"k{self.keys - age}"))

    @rule(name=names | queues, from_seq=st.integers(0, 20), limit=st.integers(1, 5), with_tags=st.booleans())
    def diff(self, name, from_seq, limit, with_tags):
        self.same(lambda api: api.diff(name, from_seq, limit=limit, include_tags=with_tags))

    @rule(name=names, before=st.none() | st.integers(0, 20), tag=st.none() | st.sampled_from(["x", "nobody"]))
    def delete(self, name, before, tag):
        fields = {field: value for field, value in (("before_seq", before), ("match", tag)) if value is not None}
        self.same(lambda api: api.delete(name, **fields))

    @rule(name=names | queues, priority=st.integers(0, 10), delay=st.sampled_from([0, LONG_MS]))
    def append_job(self, name, priority, delay):
        record = {"data": priority, "priority": priority} | ({"delay_ms": delay} if delay else {})
        self.keys += 1
        self.same(lambda api: api.append(name, [record], idempotency_key=f"k{self.keys}"))

    @rule(name=names | queues)
    def state(self, name):
        self.same(lambda api: api.state(name))

    @rule(name=names | queues, if_empty=st.booleans())
    def remove(self, name, if_empty):
        self.same(lambda api: api.remove_topic(name, if_empty=if_empty))

    @rule(name=names | queues, worker=st.sampled_from(["v", "w"]), most=st.integers(1, 3))
    def claim(self, name, worker, most):
        self.same(lambda api: [[job.seq, job.deliveries, job.data] for job in api.claim(name, worker, most)])

    @rule(
        name=queues,
        worker=st.sampled_from(["v", "w"]),
        seqs=st.lists(st.integers(1, 8), min_size=1, max_size=3),
        how=st.sampled_from(["ack", "nack"]),
    )
    def settle(self, name, worker, seqs, how):
        self.same(lambda api: getattr(api, how)(name, worker, seqs))

    @rule(name=names, group=groups, limit=st.integers(1, 4), consumer=consumers, start=st.sampled_from(places))
    def fetch(self, name, group, limit, consumer, start):
        self.same(lambda api: api.group_fetch(name, group, limit=limit, consumer=consumer, start=start))

    @rule(name=names, group=groups, seq=st.integers(0, 12), consumer=consumers)
    def acknowledge(self, name, group, seq, consumer):
        self.same(lambda api: api.group_ack(name, group, seq, consumer=consumer))

    @rule(name=names, group=groups, place=st.sampled_from(places) | st.integers(0, 12))
    def seek(self, name, group, place):
        self.same(lambda api: api.group_seek(name, group, place))

    @rule(name=names, group=groups, gone=st.booleans())
    def look_at_groups(self, name, group, gone):
        self.same(lambda api: api.remove_group(name, group) if gone else api.groups(name))

    @rule(name=names, keys=st.lists(st.sampled_from([None, "e1", "e2", "e3"]), min_size=1, max_size=3))
    def append_each_once(self, name, keys):
        records = [{"data": key, "dedup_key": key} if key else {"data": None} for key in keys]
        self.keys += 1
        self.same(lambda api: api.append(name, records, idempotency_key=f"k{self.keys}"))

    @rule()
    def list_topics(self):
        self.same(lambda api: list(api.topics()))

    @rule()
    def open_again(self):
        self.db.close()
        self.db = topics.open(Path(self.folder.name) / "data")

    @rule()
    def compact(self):
        self.db.compact()


def test_a_database_and_a_server_answer_alike(server):
    Twins.server = server
    checks = [HealthCheck.too_slow, HealthCheck.filter_too_much]
    run_state_machine_as_test(
        Twins,
        settings=settings(
            max_examples=20, stateful_step_count=40, deadline=None, suppress_health_check=checks, print_blob=True
        ),
    )
