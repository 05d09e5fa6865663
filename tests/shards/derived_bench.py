"""One shard as far as routers need it, on a disk that loses what was not synced; alone, or wired to another one."""

import json
import random
from contextlib import asynccontextmanager, contextmanager

import msgspec
import trio

from topics.core.config import ConfigPatch
from topics.core.diff import plan, render
from topics.core.ranges import SeqRanges
from topics.core.requests import Append, Diff, RecordIn
from topics.errors import TopicsError
from topics.rpc.errors import PeerLost
from topics.rpc.open_calls import Reply
from topics.rpc.peer import Peer
from topics.shards import hidden
from topics.shards.peers import Peers
from topics.shards.recovery import recover
from topics.shards.remains import Remains
from topics.shards.routers import Routers
from topics.testing.fake_clock import FakeClock
from topics.testing.faulty_files import FaultyFiles

STEPS_MAX = 200_000  # of all tasks together; a wait takes some hundreds


class StepsCounted(trio.abc.Instrument):
    """Ends a scope after very many steps: a clock that jumps stands still while somebody does not come to rest."""

    def __init__(self, scope):
        self._scope = scope
        self._left = STEPS_MAX

    def before_task_step(self, task):
        self._left -= 1
        if self._left < 0:
            self._scope.cancel()


@contextmanager
def bounded():
    """What is waited for happens, or a test fails: after a minute of its clock, or when nobody comes to rest."""
    with trio.fail_after(60), trio.CancelScope() as scope:
        steps = StepsCounted(scope)
        trio.lowlevel.add_instrument(steps)
        try:
            yield
        finally:
            trio.lowlevel.remove_instrument(steps)
    assert not scope.cancelled_caught, "something goes on and on"


class Call:
    """As much of an RPC call as routers and queues need."""

    def __init__(self, bench=None, head=None, body=b""):
        self._bench = bench
        self.head = msgspec.msgpack.decode(msgspec.msgpack.encode(head))
        self.body = body
        self.over = trio.Event()
        self.answer: Reply | TopicsError = PeerLost("the peer is down")

    def reply(self, head, body=b""):
        self.answer = Reply(msgspec.msgpack.decode(msgspec.msgpack.encode(head)), body)
        self.over.set()

    def fail(self, error):
        self.answer = error
        self.over.set()

    @property
    def finished(self):
        return self.over.is_set()

    def on_cancel(self, action):
        """Nobody cancels it."""

    def if_unheard(self, action):
        """Somebody hears it."""

    def run(self, method, *args):
        async def run():
            try:
                await method(*args)
            except TopicsError as error:
                self.fail(error)

        self._bench.nursery.start_soon(run)


class Wire(Peer):
    """The way to another shard, which may be down."""

    def __init__(self, bench):
        self._bench = bench

    async def call(self, method, head, body=b"", *, deadline_ms=None):
        await trio.lowlevel.checkpoint()
        if self._bench.nursery is None:
            raise PeerLost("the peer is down")
        call = Call(self._bench, head, body)
        self._bench.calls.add(call)
        self._bench.routers.handlers()[method](call)
        await call.over.wait()
        self._bench.calls.discard(call)
        if isinstance(call.answer, TopicsError):
            raise call.answer
        return call.answer


class Bench:
    def __init__(self, seed, files=None):
        self.dice = random.Random(seed)
        self.files = files or FaultyFiles(seed)
        self.clock = FakeClock()
        self.written = 0
        self.deleted = set()  # from the destination
        self.nursery = None  # while it is up
        self.calls = set()  # under way to this shard

    @asynccontextmanager
    async def life(self, peers=None):
        """The shard from its start to its end, which is a crash."""
        self.held = False
        self.kick = trio.Event()
        self.store = recover(self.files, self.clock, wake=lambda: self.kick.set(), keep_spent=True)
        self.engine = self.store.engine
        self.routers = Routers(self.store, peers or Peers())
        self.remains = Remains(self.routers)

        async def stored(topic):
            self.checkpoint([])
            return True

        self.routers.links.stored = stored
        async with trio.open_nursery() as nursery:
            self.nursery = nursery
            nursery.start_soon(self._commit)
            nursery.start_soon(self.routers.run)
            with bounded():
                await trio.testing.wait_all_tasks_blocked()
            yield self
            self.nursery = None
            nursery.cancel_scope.cancel()
        for call in self.calls:
            call.over.set()

    async def _commit(self):
        while True:
            await self.kick.wait()
            await trio.lowlevel.checkpoint()
            self.kick = trio.Event()
            if not self.held:
                self.sync()

    def write(self):
        """What is in the queue reaches the file, not the disk: a kill loses nothing."""
        frames = self.engine.log.take()
        if frames:
            self.store.write_group(frames)

    def sync(self):
        self.write()
        self.engine.durable(self.store.sync_log())

    def checkpoint(self, unneeded=None):
        for _ in self.checkpoint_in_steps(unneeded):
            pass

    def checkpoint_in_steps(self, unneeded=None):
        """Others have their turn between two topics, and while files are written."""
        self.sync()
        work = self.store.begin_checkpoint(unneeded)
        yield from work.capture()
        self.sync()
        work.write()
        yield
        yield from work.install()
        self.store.forget(work)
        work.sweep()

    # --- steps ----------------------------------------------------------------------------------------------------

    async def put_topic(self, name, **config):
        done = trio.Event()
        self.engine.put_topic(name, ConfigPatch(config), lambda _: done.set(), _fail)
        await done.wait()

    async def put_router(self, name, definition):
        call = Call()
        await self.routers._put(call, name, self.clock.now_ms() + self.written + 1, definition)  # type: ignore[arg-type]

    def append(self, topic, count, tag=None):
        records = []
        for _ in range(count):
            records.append(RecordIn(msgspec.Raw(b'"%b%d"' % (topic.encode(), self.written)), tag))
            self.written += 1
        self.engine.append(topic, Append(records, None, None, None, None, False), lambda _: None, _fail)

    def delete(self, topic, seqs):
        found = self.engine.state.topics[topic]
        self._note_deleted(topic, seqs)
        self.engine.delete_records(found, 0, SeqRanges.from_ascending(sorted(seqs)), lambda _: None, _fail)

    def delete_before(self, topic, seq):
        found = self.engine.state.topics[topic]
        self._note_deleted(topic, range(1, seq))
        self.routers.marks.write_one(found)
        self.engine.delete_records(found, seq, None, lambda _: None, _fail)

    def _note_deleted(self, topic, seqs):
        shown = self.read(topic)[0]
        if topic == "d":
            self.deleted.update(shown[seq] for seq in seqs if seq in shown)

    async def settle(self):
        """Until everything is forwarded, put back, and durable."""
        self.held = False
        self.kick.set()
        with bounded():
            while not all(route.is_settled for route in self.routers._routes.values()):
                await trio.sleep(0.001)
            await trio.testing.wait_all_tasks_blocked()
        self.sync()

    # --- looking --------------------------------------------------------------------------------------------------

    def read(self, name):
        """(seq → data of all live records, [(gap_from, gap_to, reason, missed)])"""
        topic = self.engine.state.topics[name]
        records, gaps, from_seq = {}, [], 0
        while True:
            query = Diff(from_seq=from_seq, limit=1000)
            found = plan(topic, query)
            for window in found.windows:
                if window.block is None:
                    window.block = self.block(window.chunk)
            text = b",".join(bytes(piece) for piece in render(found.windows, query, filter_nodes=False))
            for record in json.loads(b"[" + text + b"]"):
                records[record["$seq"]] = record["data"]
            if found.tombstone is not None:
                gaps.append(tuple(found.tombstone))
            assert found.caught_up or found.next_from_seq > from_seq, (name, found)
            from_seq = found.next_from_seq
            if found.caught_up:
                return records, gaps

    def block(self, chunk):
        return hidden.read_block(self.store, chunk)


def _fail(error):
    raise AssertionError(error)
