"""Watch sessions: what a client asked to watch and how far it has been sent, between one stream and the next.

    method          head                       body         reply head
    watch.create    wid, owner, cursors        definition
    watch.look      wid, owner
    watch.attach    wid, owner, stream,                     item: cursors, clean, created_ms (body: the definition);
                    cursors (optional)                      then, when the stream loses the session, reply: reason
    watch.detach    wid, stream, cursors, exact
    watch.progress  sessions: wid → [stream, cursors that moved]

A session lives in the shard of its wid's hash slot. Its definition is in a book, durable before the create is
answered; its cursors are in memory and go to the book when the shard stops in an orderly way, followed by a mark. The
mark says that the book is right about every session; it is removed, durably, before the next stream begins. So after
a crash sessions are there with the cursors that were saved last, and `clean` is false: a stream may have gone further.

One stream at a time. A second one ends the first and waits a moment for its final cursors. A stream that ends
without telling them leaves the session unclean. While there is a stream the session stays; without one it is removed
when it has not been touched for its TTL. Idle sessions are in the order of their last access, so looking for those
costs what it finds.
"""

import hmac
import logging
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from functools import partial

import trio

from topics import errors, limits
from topics.aside import next_please
from topics.errors import TopicsError, invalid
from topics.rpc.calls import Call, Handler
from topics.shards.book import Book
from topics.shards.heads import AttachHead, DetachHead, LookHead, ProgressHead, SessionHead, read_head
from topics.shards.session import DEFINITION, SAVED, Definition, Saved, Session, decode_definition, decode_saved
from topics.shards.store import Store

log = logging.getLogger(__name__)
NAME = "$sessions"
STOPPED = "stopped"  # the mark
ANYBODY = "*"
METHODS = ("watch.create", "watch.look", "watch.attach", "watch.detach", "watch.progress")


def _ignore(_: object) -> None:
    pass


class Sessions:
    def __init__(self, store: Store) -> None:
        """Reads the book, so it is for recovery's thread; everything else is for the loop."""
        self._engine = store.engine
        self._held = store.engine.holdings
        self._ttl_ms = store.bounds.watch_session_ttl_ms
        self._book = Book(store, NAME)
        self._sessions: dict[str, Session] = {}
        self._coming: set[str] = set()  # wids whose definition is not durable yet
        self._idle: OrderedDict[str, Session] = OrderedDict()  # without a stream, the longest untouched first
        self._stopping = False
        self._mark_gone: trio.Event | None = None  # while the mark is being removed
        self._load()

    def handlers(self) -> Mapping[str, Handler]:
        return dict(zip(METHODS, (self.create, self.look, self.attach, self.detach, self.progress), strict=True))

    def _load(self) -> None:
        now = self._engine.now()
        saved = {}
        for key, entry in self._book.load_as(_decode):
            if isinstance(entry, Definition):
                wid = key.removeprefix(DEFINITION)
                session = Session(wid, entry.owner, entry.created_ms, entry.cursors)
                session.last_access_ms = now
                self._sessions[wid] = self._idle[wid] = session
            elif entry is not None:
                saved[key.removeprefix(SAVED)] = entry
        for wid, state in saved.items():
            if (known := self._sessions.get(wid)) is not None:
                known.cursors, known.clean = state.cursors, state.clean
        if STOPPED not in self._book:
            for session in self._sessions.values():
                session.clean, session.unsaved = False, True
        self._count()

    # --- calls ----------------------------------------------------------------------------------------------------

    def create(self, call: Call) -> None:
        head = read_head(call.head, SessionHead)
        if len(call.body) > limits.WATCH_DEFINITION_BYTES:
            detail = {"bytes": len(call.body), "max": limits.WATCH_DEFINITION_BYTES}
            raise TopicsError(errors.PAYLOAD_TOO_LARGE, "the watch names too much", detail)
        self.collect()
        if head.wid in self._sessions or head.wid in self._coming:
            raise invalid("there is a session with this wid already", field="wid")
        self._engine.quota.admit_session()
        session = Session(head.wid, head.owner, self._engine.now(), head.cursors)

        def done(_: None) -> None:
            self._coming.discard(session.wid)
            self._sessions[session.wid] = session
            self._rest(session)
            call.reply({})

        def fail(error: Exception) -> None:
            self._coming.discard(session.wid)
            self._count()
            call.fail(error)

        self._book.put(DEFINITION + head.wid, session.definition(call.body), done, fail)
        self._coming.add(head.wid)
        self._count()

    def look(self, call: Call) -> None:
        """Whether a stream could have it. Does not count as an access."""
        head = read_head(call.head, LookHead)
        _check_owner(self._find(head.wid), head.owner)
        call.reply({})

    def attach(self, call: Call) -> None:
        head = read_head(call.head, AttachHead)
        self.collect()
        session = self._find(head.wid)
        _check_owner(session, head.owner)
        if session.call is not None and session.call.cancelled:
            self._vacate(session)  # its connection is lost with so many streams that this one's turn has not come yet
        if head.cursors is not None and session.stream not in ("", head.stream):
            call.reply({"reason": "taken_over"})  # it lived through a restart, but a newer stream came before it
            return
        session.occupy(head.stream, call)
        if head.cursors is not None:
            session.cursors, session.leaving = head.cursors, ""
        self._idle.pop(session.wid, None)
        call.on_cancel(partial(self._cut_off, session, call))
        call.run(self._begin, session, call)

    def detach(self, call: Call) -> None:
        head = read_head(call.head, DetachHead)
        session = self._sessions.get(head.wid)
        if session is not None and head.stream == session.stream:
            if session.started:
                session.conclude(head.cursors, head.exact)
            ended = session.call
            self._vacate(session)
            assert ended is not None
            ended.reply({"reason": "detached"})
        elif session is not None and head.stream == session.leaving:
            session.conclude(head.cursors, head.exact)
            session.leaving = ""
            assert session.left is not None
            session.left.set()
        call.reply({})

    def progress(self, call: Call) -> None:
        head = read_head(call.head, ProgressHead)
        for wid, (stream, moved) in head.sessions.items():
            session = self._sessions.get(wid)
            if session is not None and session.stream == stream and session.started:
                session.cursors.update(moved)
        call.reply({})

    def _find(self, wid: str) -> Session:
        session = self._sessions.get(wid)
        if session is None or (wid in self._idle and self._is_over(session)):
            raise _not_found()
        return session

    # --- streams --------------------------------------------------------------------------------------------------

    async def _begin(self, session: Session, call: Call) -> None:
        """Tell the stream where to begin. It may lose the session to another one while it waits for that."""
        try:
            if session.leaving and session.left is not None:
                with trio.move_on_after(limits.WATCH_TAKEOVER_MS / 1000):
                    await session.left.wait()
            await self._remove_mark()
            entry = await self._book.read(DEFINITION + session.wid)
            if session.call is not call:
                return
            if entry is None:
                self._remove([session])
                raise _not_found()
            body = decode_definition(entry).definition
            while not self._stopping and not call.try_send(_item(session), body):
                await trio.sleep(limits.WATCH_SEND_RETRY_MS / 1000)
                if session.call is not call:
                    return
            if self._stopping:
                raise TopicsError(errors.SHUTTING_DOWN, "the server is shutting down; retry", {"retry_after_ms": 1000})
            session.start()
        except Exception:
            self._cut_off(session, call)
            raise

    def _cut_off(self, session: Session, call: Call) -> None:
        """The stream ended without a word."""
        if session.call is call:
            self._vacate(session)

    def _vacate(self, session: Session) -> None:
        session.vacate(self._engine.now())
        if session.wid in self._sessions:
            self._rest(session)

    def _rest(self, session: Session) -> None:
        session.last_access_ms = self._engine.now()
        self._idle[session.wid] = session  # at the end: it was not among them

    async def _remove_mark(self) -> None:
        """From the first stream on, what the last stop saved need not be right any more."""
        if self._mark_gone is None:
            if STOPPED not in self._book:
                return
            gone = trio.Event()
            self._book.remove(STOPPED, lambda _: gone.set(), _ignore)  # if it fails the shard ends
            self._mark_gone = gone
        await self._mark_gone.wait()

    # --- the end of sessions --------------------------------------------------------------------------------------

    def _is_over(self, session: Session) -> bool:
        return self._engine.now() - session.last_access_ms > self._ttl_ms

    def collect(self) -> bool:
        """Remove what nobody has touched for its TTL, some of it if it is much; whether it was."""
        over: list[Session] = []
        for session in self._idle.values():
            if len(over) == limits.WATCH_COLLECT_MAX or not self._is_over(session):
                break
            over.append(session)
        if over:
            self._remove(over)
        return len(over) == limits.WATCH_COLLECT_MAX

    async def keep_collecting(self) -> None:
        """Until cancelled. A session that is over must not take up room under the cap in other shards' eyes."""
        while True:
            await trio.sleep(limits.WATCH_COLLECT_MS / 1000)
            while self._engine.poisoned is None and self.collect():
                next_please()
                await trio.lowlevel.checkpoint()

    def _remove(self, sessions: list[Session]) -> None:
        """Gone at once for everybody who asks here, and for the other shards when it is durable."""
        count = len(sessions)

        def done(_: None) -> None:
            self._held.sessions_leaving -= count
            self._engine.quota.publish()

        keys = [kind + session.wid for session in sessions for kind in (DEFINITION, SAVED)]
        self._book.remove_all(keys, done, _ignore)
        self._held.sessions_leaving += count
        for session in sessions:
            del self._sessions[session.wid]
            self._idle.pop(session.wid, None)
        self._count()

    def _count(self) -> None:
        self._held.sessions = len(self._sessions) + len(self._coming)

    # --- an orderly stop ------------------------------------------------------------------------------------------

    def save(self) -> Iterator[None]:
        """Store what only memory knows, a batch a step, then the mark. No call may come any more."""
        self._stopping = True
        try:
            for batch in self._batches():
                self._book.put_all(batch, _ignore, _ignore)
                yield
            if self._sessions and STOPPED not in self._book:
                self._book.put(STOPPED, b"", _ignore, _ignore)
        except TopicsError as error:
            log.warning("the cursors of watch sessions were not saved: %s", error.message)

    def _batches(self) -> Iterator[dict[str, bytes]]:
        batch: dict[str, bytes] = {}
        size = 0
        for session in list(self._sessions.values()):
            if session.unsaved:
                session.unsaved = False
                batch[SAVED + session.wid] = entry = session.saved()
                size += len(entry)
            if size > limits.WATCH_SAVE_BYTES or len(batch) == limits.BLOCK_RECORDS_MAX:
                yield batch
                batch, size = {}, 0
        if batch:
            yield batch


def _decode(key: str, entry: bytes) -> Definition | Saved | None:
    if key.startswith(DEFINITION):
        return decode_definition(entry)
    return decode_saved(entry) if key.startswith(SAVED) else None


def _item(session: Session) -> Mapping[str, object]:
    return {"cursors": session.cursors, "clean": session.clean, "created_ms": session.created_ms}


def _not_found() -> TopicsError:
    return TopicsError(errors.NOT_FOUND, "there is no such watch session, or it is over; create a new one")


def _check_owner(session: Session, owner: str) -> None:
    """A session that was made without a key is open to all; else only its own key opens it."""
    if not session.owner or owner == ANYBODY or hmac.compare_digest(session.owner.encode(), owner.encode()):
        return
    raise TopicsError(errors.UNAUTHORIZED, "the watch session belongs to another API key")
