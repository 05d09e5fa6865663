"""What a shard answers over RPC.

    method      head                             body         reply head           reply body
    put         topic, prefixes                  config       created, perf        open fragment
    state       topic, touch                                  perf                 open fragment
    list        after, prefix, limit, prefixes, touch         names, sizes, more   entries, joined
    remove      topic, if_empty                               deleted, perf        open fragment
    append      topic, return_seqs, key,         records      created, perf        open fragment
                prefixes
    diff        topic, wait (false: answer now)  query        perf                 open fragment
    follow      see follow.py
    places, seek    see places.py
    delete      topic                            selection    perf                 open fragment
    health                                                    see Shard.health
    metrics     topics (rows at most), prefixes               see metrics.py
    checkpoint
    watch.…     see sessions.py
    router…     see routers.py, links.py
    group.…     see groups.py

Bodies are the client's bytes, untouched. An open fragment is a JSON object without its closing brace (replies.py).
`perf` holds the fields of the reply's `performance` object that only the shard knows.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import inf
from typing import Any

import trio

from topics import errors, limits
from topics.aside import run_aside
from topics.core import replies, residence
from topics.core.config import ConfigPatch, parse_config
from topics.core.ids import ids_of
from topics.core.names import check_topic_name
from topics.core.requests import Append, decode_append, decode_delete, decode_diff
from topics.core.topic import Topic
from topics.errors import TopicsError
from topics.limits import Limits
from topics.rpc.calls import Call, Handler
from topics.shards.answers import Appending, Done, Fail
from topics.shards.bodies import Bodies
from topics.shards.committer import Committer
from topics.shards.deletes import Deletes
from topics.shards.diffs import Diffs, Look
from topics.shards.follow import Follow
from topics.shards.grouplog import GroupLog
from topics.shards.groups import METHODS as GROUP_METHODS
from topics.shards.groups import Groups
from topics.shards.heads import (
    AppendHead,
    DiffHead,
    FollowHead,
    PutHead,
    RemoveHead,
    StateHead,
    TopicHead,
    read_head,
)
from topics.shards.idsalt import config_of_new
from topics.shards.listing import Listing
from topics.shards.places import METHODS as PLACE_METHODS
from topics.shards.places import Places
from topics.shards.polls import Polls
from topics.shards.queues import METHODS as QUEUE_METHODS
from topics.shards.queues import Queues
from topics.shards.reader import BlockReader
from topics.shards.remains import Remains
from topics.shards.rendering import make_ready, render
from topics.shards.routers import METHODS as ROUTER_METHODS
from topics.shards.routers import Routers
from topics.shards.scheduler import Scheduler
from topics.shards.sessions import METHODS as WATCH_METHODS
from topics.shards.sessions import Sessions
from topics.shards.settling import Settling
from topics.shards.store import Store

METHODS = (
    *("put", "state", "list", "remove", "append", "diff", "follow", "delete"),
    *PLACE_METHODS,
    *WATCH_METHODS,
    *QUEUE_METHODS,
    *ROUTER_METHODS,
    *GROUP_METHODS,
    "router.settle",
)


SURVEYS_MAX = 3  # of a topic that leaves `ephemeral`: one more if something has changed meanwhile


class Service:
    """The handlers of a shard that has recovered."""

    def __init__(
        self,
        store: Store,
        committer: Committer,
        sessions: Sessions,
        queues: Queues,
        routers: Routers,
        group_log: GroupLog,
    ) -> None:
        self._store = store
        self._engine = store.engine
        self._committer = committer
        self.reader = BlockReader(store)
        self.sessions = sessions
        self.queues = queues
        self.routers = routers
        self.remains = Remains(routers)
        queues.open(self.reader, self.log_times, self.check_open)
        self.polls = Polls()
        self.bodies = Bodies()
        self.draining = False
        self.scheduler = Scheduler(store.engine)
        self._settling = Settling(routers)
        self._diffs = Diffs(store, self.reader, self.polls, self.scheduler, self._settling)
        self.groups = Groups(store, group_log, self._diffs, self._settling, self._group_timer)
        self._deletes = Deletes(store, self.reader, self.check_open, routers.marks)

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "put": self._writes(self.put),
            "state": self.state,
            "list": Listing(self._engine).page,
            "remove": self._writes(self.remove),
            "append": self._writes(self.append),
            "diff": self.diff,
            "follow": self.follow,
            "delete": self._writes(self.delete),
            **Places(self._engine, self._settling).handlers(),
            **{method: self._writes(handler) for method, handler in self.sessions.handlers().items()},
            **{method: self._writes(handler) for method, handler in self.queues.handlers().items()},
            **{method: self._writes(handler) for method, handler in self.routers.handlers().items()},
            **self._group_handlers(),
            "router.settle": self._settling.settle,
        }

    def _group_handlers(self) -> Mapping[str, Handler]:
        """All of them but two may write."""
        reads = ("group.state", "group.list")
        handlers = self.groups.handlers().items()
        return {method: handler if method in reads else self._writes(handler) for method, handler in handlers}

    def _writes(self, handler: Handler) -> Handler:
        def check(call: Call) -> None:
            self.check_open()
            handler(call)

        return check

    def check_open(self) -> None:
        """A shard that is about to stop takes no more writes, also none that was in a thread meanwhile."""
        if self.draining:
            raise TopicsError(errors.SHUTTING_DOWN, "the server is shutting down; retry", {"retry_after_ms": 1000})

    # --- topics ---------------------------------------------------------------------------------------------------

    def put(self, call: Call) -> None:
        head = read_head(call.head, PutHead)
        name = check_topic_name(head.topic)
        patch = parse_config(call.body, name)
        _check_names(patch, head.prefixes)
        clock = _Timer(self)

        def done(outcome: tuple[Topic, bool]) -> None:
            topic, created = outcome
            perf = clock.perf(synced=topic.config.durable)
            call.reply({"created": created, "perf": perf}, replies.topic_config(topic, created=created))

        topic = self._engine.state.topics.get(name)
        if topic is not None and residence.takes_long(topic):
            call.run(self._put_surveyed, topic, patch, done, call.fail)
        else:
            self._engine.put_topic(name, patch, done, call.fail)

    async def _put_surveyed(self, topic: Topic, patch: ConfigPatch, done: Done, fail: Fail) -> None:
        """The topic may leave `ephemeral`, and has many records from before. Other commands wait for this one. It is
        made even if it is cancelled once that has begun."""
        while (waiting := topic.parked if topic.parked is not None else topic.held) is not None:
            free = trio.Event()
            waiting.append(free.set)
            await free.wait()
        topic.parked = []
        survey = residence.Survey(topic)

        def put() -> None:
            self.check_open()
            self._engine.put_topic(topic.name, patch, done, fail, survey)

        try:
            with trio.CancelScope(shield=True):
                await run_aside(survey.work_out)
                for _ in range(SURVEYS_MAX - 1):
                    if survey.holds_for(topic):
                        break
                    survey = residence.Survey(topic)
                    await run_aside(survey.work_out)
        finally:
            self._engine.unpark(topic, put, fail)

    def state(self, call: Call) -> None:
        head = read_head(call.head, StateHead)
        topic = self._find(head.topic)
        if self._settling.is_settled(topic):
            self._reply_state(call, head, topic)
        else:
            call.run(self._state_later, call, head, topic)

    async def _state_later(self, call: Call, head: StateHead, topic: Topic) -> None:
        await self._settling.wait(topic)
        self._reply_state(call, head, self._find(head.topic))

    def _reply_state(self, call: Call, head: StateHead, topic: Topic) -> None:
        now = self._engine.now()
        if not self._engine.expire(topic):
            self._engine.endings.later(topic, lambda: self.state(call), call.fail)
            return
        if head.touch:
            topic.last_read_ms = now

        def reply() -> None:
            call.reply({"perf": {}}, replies.topic_state(topic, self._engine.now()))

        if topic.leases is None:
            reply()
        else:
            self.queues.of(topic).in_order(reply)

    def remove(self, call: Call) -> None:
        head = read_head(call.head, RemoveHead)
        name = check_topic_name(head.topic)
        clock = _Timer(self)
        topic = self._engine.state.topics.get(name)
        durable = topic is not None and topic.config.durable

        def done(removed: bool, routers: Sequence[str] = ()) -> None:
            if topic is not None and removed:
                self.groups.topic_removed(topic)
            body = replies.opened({"topic": name, "deleted": removed, "routers_removed": routers})
            call.reply({"deleted": removed, "perf": clock.perf(synced=removed and durable)}, body)

        async def remove_with_routers(topic: Topic) -> None:
            done(*await self.routers.remove_topic(topic, head.if_empty))

        if topic is not None and self.routers.touches(topic):
            call.run(remove_with_routers, topic)
        else:
            self._engine.remove_topic(name, head.if_empty, done, call.fail)

    # --- append ---------------------------------------------------------------------------------------------------

    def append(self, call: Call) -> None:
        head = read_head(call.head, AppendHead)
        name = check_topic_name(head.topic)
        if call.in_parts or _takes_long(call.body):
            call.run(self._append_large, call, head, name)
            return
        request = _decode(call.body, name, head, self._store.bounds)
        if request.disable_backpressure and self._must_wait:
            call.run(self._append_later, call, head, name, request)
            return
        self.scheduler.check_admission()
        topic = self._engine.state.topics.get(name)
        if topic is not None and topic.held is not None:
            self._append_held(call, head, name, request)
            return
        self._engine.append(name, request, self._answer_append(call, head), call.fail)

    def _append_held(self, call: Call, head: AppendHead, name: str, request: Append) -> None:
        """A write that has to wait for a large one: its body counts too."""
        give_back = self.bodies.take(call.body_bytes)
        try:
            done = _before(give_back, self._answer_append(call, head))
            self._engine.append(name, request, done, _before(give_back, call.fail))
        except BaseException:
            give_back()
            raise

    async def _append_later(self, call: Call, head: AppendHead, name: str, request: Append) -> None:
        """A write that would rather wait than hear that the log queue is full."""
        give_back = self.bodies.take(call.body_bytes)
        try:
            await self._wait_for_room()
        finally:
            give_back()
        self._append_held(call, head, name, request)

    @property
    def _must_wait(self) -> bool:
        return self._engine.log.crowded or self.scheduler.lag_ms > limits.LAG_HIGH_MS

    async def _wait_for_room(self, patience_ms: float = inf) -> None:
        until = trio.current_time() + patience_ms / 1000
        while self._must_wait and trio.current_time() < until:
            await trio.sleep(limits.WAL_ROOM_RETRY_MS / 1000)
            self.check_open()

    def _answer_append(self, call: Call, head: AppendHead) -> Callable[[Appending], None]:
        clock = _Timer(self)

        def done(outcome: Appending) -> None:
            name, first_seq, count, head_seq, created, deduped, duplicates = outcome
            topic = self._engine.state.topics.get(name)
            synced = not deduped and topic is not None and topic.config.durability == "fsync"
            body = replies.appended(
                name,
                first_seq,
                count,
                head_seq,
                created=created,
                deduped=deduped,
                return_seqs=head.return_seqs,
                duplicates=duplicates,
            )
            call.reply({"created": created, "perf": clock.perf(synced=synced)}, body)

        return done

    async def _append_large(self, call: Call, head: AppendHead, name: str) -> None:
        """Decode and render a large write in a thread. Its body counts until it is logged or refused."""
        give_back = self.bodies.take(call.body_bytes)
        spent: list[object] = []
        try:
            request = await run_aside(lambda: _decode(call.body, name, head, self._store.bounds))
            spent += call.give_body(), request
            patience_ms = inf if request.disable_backpressure else limits.LARGE_WRITE_WAIT_MS
            await self._wait_for_room(patience_ms)
            if not request.disable_backpressure:
                self.scheduler.check_admission()
            done = _before(give_back, self._answer_append(call, head))
            await self._append_rendered(name, request, done, _before(give_back, call.fail))
        except BaseException:
            give_back()
            raise
        del request
        await run_aside(spent.clear)

    async def _append_rendered(self, name: str, request: Append, done: Done, fail: Fail) -> None:
        """The topic is held while the records are rendered, other topics are not. Cancelled before, nothing is written;
        from then on the write is made."""
        engine = self._engine
        if name not in engine.state.topics:
            draft, ts = Topic(0, name, 0, config_of_new(name, request)), engine.now()
            rendered = await run_aside(render, engine.memory, draft, request, ts, ids_of(draft, ts))
            if name not in engine.state.topics:  # else somebody else made it meanwhile, and its seqs have begun
                self.check_open()
                engine.append(name, request, done, fail, rendered)
                return
        topic = await self._turn_on(name, request)
        self.check_open()
        if topic is None or topic.removing:
            engine.append(name, request, done, fail)
            return
        _, ts = engine.hold(topic)
        try:
            with trio.CancelScope(shield=True):
                ready = await run_aside(make_ready, engine.memory, topic, request, ts, ids_of(topic, ts))
        except BaseException:
            engine.release(topic, lambda: None)
            raise

        def write() -> None:
            self.check_open()
            if isinstance(ready, Appending):
                engine.check_writable()
                done(ready)
            else:
                engine.append(name, request, done, fail, ready)

        engine.release(topic, lambda: engine.redo(write, fail))

    async def _turn_on(self, name: str, request: Append) -> Topic | None:
        """The topic, when nobody holds it or changes it, and no key of the write is on its way."""
        while (topic := self._engine.state.topics.get(name)) is not None:
            over = trio.Event()
            if topic.parked is not None:
                topic.parked.append(over.set)
            elif topic.held is not None:
                topic.held.append(over.set)
            elif not self._engine.memory.waits(topic, request, over.set):
                break
            await over.wait()
        return topic

    # --- diff and delete ------------------------------------------------------------------------------------------

    def diff(self, call: Call) -> None:
        head = read_head(call.head, DiffHead)
        name = check_topic_name(head.topic)
        query = decode_diff(call.body, self._store.bounds)
        self._diffs.look(Look(call, name, query, query.wait_ms if head.wait else 0))

    def follow(self, call: Call) -> None:
        head = read_head(call.head, FollowHead)
        self._diffs.look(Follow(call, head))

    def delete(self, call: Call) -> None:
        head = read_head(call.head, TopicHead)
        request = decode_delete(call.body, self._store.bounds)
        topic = self._find(head.topic)
        clock = _Timer(self)

        def done(deleted: int | None) -> None:
            synced = topic.config.durability == "fsync"
            call.reply({"perf": clock.perf(synced=synced)}, replies.deleted(topic, deleted or 0))

        self._deletes.start(call, topic, request, done)

    def _find(self, name: str) -> Topic:
        return self._engine.state.find(check_topic_name(name))

    def _group_timer(self) -> Callable[[], dict[str, float]]:
        """Changes of groups are synced whatever the class of their topic."""
        return partial(_Timer(self).perf, synced=True)

    # --- measuring ------------------------------------------------------------------------------------------------

    def log_times(self, waited_us: int, *, synced: bool) -> dict[str, float]:
        """`fsync_ms` is of durable topics only, as the API says, though others' control events are synced as well."""
        sync_us = min(self._committer.sync_times.last_us, waited_us) if synced else 0
        return {"wal_append_ms": (waited_us - sync_us) / 1000, "fsync_ms": sync_us / 1000}


_MORE_THAN_DATA = (b'"tag"', b'"meta"', b'"node"', b'"dedup_key"')


def _takes_long(body: bytes) -> bool:
    """Whether decoding and rendering would hold the loop for more than a millisecond or two.

    A thread costs more than it spares below that: it and the loop take the interpreter from one another.
    """
    if len(body) <= limits.INLINE_BODY_BYTES:
        return False
    if len(body) > limits.THREAD_BODY_BYTES:
        return True
    first = body[: limits.INLINE_BODY_BYTES]  # as its records are, so are the others of most batches
    plain = not any(name in first for name in _MORE_THAN_DATA)
    return body.count(b'"data"') > (limits.INLINE_PLAIN_RECORDS if plain else limits.INLINE_RECORDS)


def _before(first: Callable[[], None], then: Callable[[Any], None]) -> Callable[[Any], None]:
    def both(value: Any) -> None:
        first()
        then(value)

    return both


def _decode(body: bytes, name: str, head: AppendHead, bounds: Limits) -> Append:
    request = decode_append(body, name, bounds, header_key=head.key)
    if request.config is not None:
        _check_names(request.config, head.prefixes)
    return request


def _check_names(patch: ConfigPatch, prefixes: tuple[str, ...] | None) -> None:
    """A config must not point to a topic its author may not touch: jobs would be moved there on its behalf."""
    other = patch.changes.get("dead_letter")
    if prefixes and other is not None and not other.startswith(prefixes):
        raise TopicsError(errors.FORBIDDEN, "dead_letter lies outside the API key's prefixes", {"name": other})


class _Timer:
    """From a command's arrival at the engine to its answer."""

    __slots__ = ("_service", "_start")

    def __init__(self, service: Service) -> None:
        self._service = service
        self._start = service._engine.clock.monotonic_ns()

    def perf(self, *, synced: bool) -> dict[str, float]:
        waited_us = (self._service._engine.clock.monotonic_ns() - self._start) // 1000
        return self._service.log_times(waited_us, synced=synced)
