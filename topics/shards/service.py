"""What a shard answers over RPC.

    method      head                             body         reply head           reply body
    put         topic                            config       created, perf        open fragment
    state       topic, touch                                  perf                 open fragment
    list        after, prefix, limit, prefixes, touch         names, sizes, more   entries, joined
    remove      topic, if_empty                               deleted, perf        open fragment
    append      topic, return_seqs, key,         records      created, perf        open fragment
                may_configure (false: a config in the body is forbidden)
    diff        topic, wait (false: answer now)  query        perf                 open fragment
    delete      topic                            selection    perf                 open fragment
    health                                                    see Shard.health
    metrics     topics (rows at most), prefixes               see metrics.py
    checkpoint

Bodies are the client's bytes, untouched. An open fragment is a JSON object without its closing brace (replies.py).
`perf` holds the fields of the reply's `performance` object that only the shard knows.
"""

from collections.abc import Callable, Mapping
from itertools import islice

import trio

from topics import errors, limits
from topics.core import replies
from topics.core.block import BadBlock
from topics.core.config import parse_config
from topics.core.diff import Plan, render
from topics.core.diff import plan as plan_diff
from topics.core.names import check_topic_name
from topics.core.ranges import SeqRanges
from topics.core.render import render_blocks
from topics.core.requests import Append, Diff, decode_append, decode_delete, decode_diff
from topics.core.tags import Pattern
from topics.core.topic import Topic
from topics.errors import TopicsError
from topics.rpc.calls import Call, Handler
from topics.shards.answers import Appending
from topics.shards.committer import Committer
from topics.shards.polls import Polls
from topics.shards.reader import BlockReader, Missing
from topics.shards.store import Store

RANGES_PER_EVENT = 4096  # a match that hits more is deleted in several events, so that the loop is never held long


class Service:
    """The handlers of a shard that has recovered."""

    def __init__(self, store: Store, committer: Committer) -> None:
        self._store = store
        self._engine = store.engine
        self._committer = committer
        self.reader = BlockReader(store)
        self.polls = Polls()
        self.draining = False

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "put": self._writes(self.put),
            "state": self.state,
            "list": self.page,
            "remove": self._writes(self.remove),
            "append": self._writes(self.append),
            "diff": self.diff,
            "delete": self._writes(self.delete),
        }

    def _writes(self, handler: Handler) -> Handler:
        """A shard that is about to stop takes no more writes."""

        def check(call: Call) -> None:
            if self.draining:
                raise TopicsError(errors.SHUTTING_DOWN, "the server is shutting down; retry", {"retry_after_ms": 1000})
            handler(call)

        return check

    # --- topics ---------------------------------------------------------------------------------------------------

    def put(self, call: Call) -> None:
        name = check_topic_name(call.head["topic"])
        patch = parse_config(call.body, name)
        clock = _Timer(self)

        def done(outcome: tuple[Topic, bool]) -> None:
            topic, created = outcome
            perf = clock.perf(synced=True)
            call.reply({"created": created, "perf": perf}, replies.topic_config(topic, created=created))

        self._engine.put_topic(name, patch, done, call.fail)

    def state(self, call: Call) -> None:
        topic = self._find(call)
        now = self._engine.now()
        self._engine.expire(topic)
        if call.head.get("touch", True):
            topic.last_read_ms = now
        call.reply({"perf": {}}, replies.topic_state(topic, now))

    def page(self, call: Call) -> None:
        """One page of this shard's topics in name order; the gateway merges the pages of all shards."""
        head = call.head
        limit = min(head.get("limit", limits.LIST_PAGE_DEFAULT), limits.LIST_PAGE_MAX)
        found = self._engine.state.list_names(head.get("after", ""), head.get("prefix", ""), head.get("prefixes") or ())
        names = list(islice(found, limit + 1))
        now = self._engine.now()
        entries = []
        for name in names[:limit]:
            topic = self._engine.state.topics[name]
            self._engine.expire(topic)
            if head.get("touch"):
                topic.last_read_ms = now
            entries.append(replies.topic_summary(topic, now))
        sizes = [len(entry) for entry in entries]
        call.reply({"names": names[:limit], "sizes": sizes, "more": len(names) > limit}, b"".join(entries))

    def remove(self, call: Call) -> None:
        name = check_topic_name(call.head["topic"])
        clock = _Timer(self)

        def done(removed: bool) -> None:
            body = replies.opened({"topic": name, "deleted": removed, "routers_removed": []})
            call.reply({"deleted": removed, "perf": clock.perf(synced=removed)}, body)

        self._engine.remove_topic(name, bool(call.head.get("if_empty")), done, call.fail)

    # --- append ---------------------------------------------------------------------------------------------------

    def append(self, call: Call) -> None:
        name = check_topic_name(call.head["topic"])
        if len(call.body) > limits.THREAD_BODY_BYTES:
            call.run(self._append_large, call, name)
            return
        request = decode_append(call.body, name, self._store.bounds, header_key=call.head.get("key"))
        _check_config(call, request)
        self._engine.append(name, request, self._answer_append(call, request), call.fail)

    def _answer_append(self, call: Call, request: Append) -> Callable[[Appending], None]:
        clock = _Timer(self)
        return_seqs = call.head.get("return_seqs", True)

        def done(outcome: Appending) -> None:
            name, first_seq, count, head_seq, created, deduped = outcome
            topic = self._engine.state.topics.get(name)
            synced = not deduped and topic is not None and topic.config.durability == "fsync"
            body = replies.appended(
                name, first_seq, count, head_seq, created=created, deduped=deduped, return_seqs=return_seqs
            )
            call.reply({"created": created, "perf": clock.perf(synced=synced)}, body)

        return done

    async def _append_large(self, call: Call, name: str) -> None:
        """Decode and render a large write in a thread; the topic is held meanwhile, other topics are not."""
        bounds, key = self._store.bounds, call.head.get("key")
        request = await trio.to_thread.run_sync(lambda: decode_append(call.body, name, bounds, header_key=key))
        _check_config(call, request)
        done = self._answer_append(call, request)
        topic = self._engine.state.topics.get(name)
        if topic is None or topic.removing or topic.held is not None:
            self._engine.append(name, request, done, call.fail)
            return
        engine = self._engine
        first_seq, ts = engine.hold(topic)
        blocks = None
        try:
            with trio.CancelScope(shield=True):
                blocks = await trio.to_thread.run_sync(render_blocks, request.records, request.node, first_seq, ts)
        finally:
            engine.release(
                topic,
                lambda: self._engine.redo(
                    lambda: self._engine.append(name, request, done, call.fail, blocks), call.fail
                ),
            )

    # --- diff -----------------------------------------------------------------------------------------------------

    def diff(self, call: Call) -> None:
        query = decode_diff(call.body, self._store.bounds)
        self._diff(call, self._find(call), query, query.wait_ms if call.head.get("wait", True) else 0)

    def _diff(self, call: Call, topic: Topic, query: Diff, wait_ms: int) -> None:
        now = self._engine.now()
        self._engine.expire(topic)
        topic.last_read_ms = now
        plan = plan_diff(topic, query)
        if plan.empty and wait_ms:
            self._wait(call, topic, query, wait_ms)
            return
        try:
            missing = self.reader.missing(plan)
        except BadBlock:
            self.reader.report_damage(topic, plan)
            self._diff(call, topic, query, 0)
            return
        if missing:
            call.run(self._diff_from_disk, call, topic, query, plan, missing)
        else:
            self._answer_diff(call, topic, query, plan)

    def _wait(self, call: Call, topic: Topic, query: Diff, wait_ms: int) -> None:
        ends = trio.current_time() + wait_ms / 1000

        def again() -> None:
            left = int((ends - trio.current_time()) * 1000)
            self._engine.redo(lambda: self._diff(call, self._find(call), query, max(left, 0)), call.fail)

        call.on_cancel(self.polls.wait(topic, wait_ms, again).cancel)

    async def _diff_from_disk(self, call: Call, topic: Topic, query: Diff, plan: Plan, missing: list[Missing]) -> None:
        try:
            await self.reader.fill(missing)
        except BadBlock:
            self.reader.report_damage(topic, plan)
            self._diff(call, topic, query, 0)
            return
        self._answer_diff(call, topic, query, plan)

    def _answer_diff(self, call: Call, topic: Topic, query: Diff, plan: Plan) -> None:
        pieces = render(plan.windows, query, filter_nodes=topic.config.dedupe_node)
        call.reply({"perf": {"records_scanned": plan.scanned}}, replies.difference(topic.name, plan, pieces))

    # --- delete ---------------------------------------------------------------------------------------------------

    def delete(self, call: Call) -> None:
        request = decode_delete(call.body, self._store.bounds)
        topic = self._find(call)
        if request.match is None:
            assert request.before_seq is not None
            self._engine.delete_records(topic, request.before_seq, None, self._answer_delete(call, topic), call.fail)
            return
        plan = self._store.plan_match(topic, Pattern(request.match), request.before_seq)
        if plan.reads_files:
            call.run(self._delete_from_files, call, topic, plan.resolve)
        else:
            self._delete_ranges(call, topic, plan.resolve())

    async def _delete_from_files(self, call: Call, topic: Topic, resolve: Callable[[], SeqRanges]) -> None:
        ranges = await trio.to_thread.run_sync(resolve)
        self._delete_ranges(call, topic, ranges)

    def _delete_ranges(self, call: Call, topic: Topic, ranges: SeqRanges) -> None:
        if ranges.range_count > RANGES_PER_EVENT:
            call.run(self._delete_in_parts, call, topic, ranges)
            return
        self._engine.delete_records(topic, 0, ranges, self._answer_delete(call, topic), call.fail)

    async def _delete_in_parts(self, call: Call, topic: Topic, ranges: SeqRanges) -> None:
        """A delete of very many scattered records, a part at a time; the answer counts them all."""
        parts = list(_parts(ranges))
        total = 0
        answer = self._answer_delete(call, topic)

        def count(deleted: int) -> None:
            nonlocal total
            total += deleted or 0

        for part in parts[:-1]:
            self._engine.delete_records(topic, 0, part, count, call.fail)
            await trio.lowlevel.checkpoint()
        self._engine.delete_records(topic, 0, parts[-1], lambda deleted: answer(total + (deleted or 0)), call.fail)

    def _answer_delete(self, call: Call, topic: Topic) -> Callable[[int], None]:
        clock = _Timer(self)

        def done(deleted: int) -> None:
            synced = topic.config.durability == "fsync"
            call.reply({"perf": clock.perf(synced=synced)}, replies.deleted(topic, deleted or 0))

        return done

    def _find(self, call: Call) -> Topic:
        return self._engine.state.find(check_topic_name(call.head["topic"]))

    # --- measuring ------------------------------------------------------------------------------------------------

    def log_times(self, waited_ms: float, *, synced: bool) -> dict[str, float]:
        sync_ms = min(self._committer.sync_times.last_ms, waited_ms) if synced else 0.0
        return {"wal_append_ms": round(waited_ms - sync_ms, 3), "fsync_ms": round(sync_ms, 3)}


def _check_config(call: Call, request: Append) -> None:
    """Whoever may only write must not choose what a topic is like. The same answer whether the topic exists or not."""
    if request.config is not None and not call.head.get("may_configure", True):
        message = "the API key lacks the scope admin, which an append with a config needs"
        raise TopicsError(errors.FORBIDDEN, message, {"scopes": ["admin"]})


class _Timer:
    """From a command's arrival at the engine to its answer."""

    __slots__ = ("_service", "_start")

    def __init__(self, service: Service) -> None:
        self._service = service
        self._start = service._engine.clock.monotonic_ns()

    def perf(self, *, synced: bool) -> dict[str, float]:
        waited_ms = (self._service._engine.clock.monotonic_ns() - self._start) / 1e6
        return self._service.log_times(waited_ms, synced=synced)


def _parts(ranges: SeqRanges) -> "list[SeqRanges]":
    parts: list[SeqRanges] = []
    part = SeqRanges()
    for first, last in ranges:
        part.add(first, last)
        if part.range_count == RANGES_PER_EVENT:
            parts.append(part)
            part = SeqRanges()
    return [*parts, part] if part or not parts else parts
