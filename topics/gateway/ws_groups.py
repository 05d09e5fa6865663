"""A WebSocket's subscription that reads for a consumer group.

Its records come like those of any other subscription. Beside them one call stays open to the topic's shard
(`group.attach`): it says where to begin, that somebody has moved the group, and that another consumer has taken it
over, which ends the subscription. While the shard is down the subscription stays, and the call is made again; if the
group stands elsewhere by then than we know, that is where reading goes on.
"""

import secrets
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import trio
from msgspec import UNSET

from topics import errors, limits
from topics.core.group_requests import check_consumer
from topics.core.groups import check_where
from topics.core.names import check_group_name
from topics.core.requests import quoted
from topics.errors import TopicsError, invalid
from topics.gateway.feeds import next_pause_ms
from topics.gateway.live import Live, Standing
from topics.gateway.ws_frames import Ack, Subscribe
from topics.rpc.open_calls import Reply, Stream

LATER = (errors.NOT_READY, errors.SHUTTING_DOWN)
CREDITS = 4  # of the call: it says something when the group is moved


class GroupSubscription:
    def __init__(self, live: Live, command: Subscribe) -> None:
        assert command.topic is not None and command.group is not None
        self.topic = command.topic
        self.group = check_group_name(command.group)
        self.consumer = (
            check_consumer(command.consumer) if command.consumer is not None else f"ws-{secrets.token_hex(8)}"
        )
        self._cursor = 0  # where the group stands, as far as we know
        self._acked = 0  # or up to here: acks that have no answer may have been made
        self._live = live
        self._peer = live.shards.peer_of(self.topic)
        start = "earliest" if command.from_ is UNSET else msgspec.to_builtins(command.from_)
        self._first = {"start": start, "back": command.take_over}
        self._call: Stream | None = None
        self._scope = trio.CancelScope()

    async def open(self) -> Standing:
        """Take the group; where to begin. Raises what the shard refuses it with."""
        place = await self._attach(self._first)
        self._cursor = self._acked = place.from_seq
        return place

    async def _attach(self, more: Mapping[str, Any]) -> Standing:
        connection = await self._peer.connect()
        head = {"topic": self.topic, "group": self.group, "consumer": self.consumer, **more}
        call = connection.stream("group.attach", head, credits=CREDITS)
        await call.__aenter__()
        try:
            with trio.move_on_after(limits.CALL_DEADLINE_MS / 1000):
                place = _standing((await call.__anext__()).head)
                self._call = call
                return place
            raise TopicsError(errors.NOT_READY, "the shard did not answer in time", {"retry_after_ms": 1000})
        except BaseException:
            call.abandon()
            raise

    async def keep(self, moved: Callable[[Standing], None]) -> TopicsError | None:
        """Until it is over; why. None: `close` was called."""
        with self._scope:
            pause_ms = 0
            while True:
                try:
                    if self._call is None:
                        self._go_on(await self._attach({}), moved)
                    pause_ms = 0
                    await self._listen(moved)
                except TopicsError as error:
                    if error.code not in LATER:
                        return error
                self._call = None
                pause_ms = next_pause_ms(pause_ms)
                await trio.sleep(pause_ms / 1000)
        return None

    async def _listen(self, moved: Callable[[Standing], None]) -> None:
        assert self._call is not None
        async for item in self._call:
            self._move(_standing(item.head), moved)

    def _go_on(self, place: Standing, moved: Callable[[Standing], None]) -> None:
        """After the shard was away. Nobody has moved the group if it stands where our own acks have brought it."""
        if not self._cursor <= place.from_seq <= self._acked:
            self._move(place, moved)

    def _move(self, place: Standing, moved: Callable[[Standing], None]) -> None:
        self._cursor = self._acked = place.from_seq
        moved(place)

    async def ack(self, seq: int) -> Reply:
        """The shard's answer. Raises its refusal."""
        body = b'{"seq":%d,"consumer":%b}' % (seq, quoted(self.consumer))
        head = {"topic": self.topic, "group": self.group}
        self._acked = max(self._acked, seq)
        reply = await self._live.shards.call(self.topic, "group.ack", head, body)
        self._cursor = reply.head["cursor"]
        return reply

    def close(self) -> None:
        """Nobody listens any more. The group stays where it is."""
        self._scope.cancel()
        if self._call is not None:
            self._call.abandon()
            self._call = None


def check_group_fields(command: Subscribe) -> None:
    """A group says where to begin, and has one topic. Raises `invalid_request`."""
    if command.group is None:
        for field in ("consumer", "take_over"):
            if getattr(command, field):
                raise invalid(f"{field} is for a subscription with a group", field=field)
        if command.from_ is not UNSET:
            raise invalid("from is for a subscription with a group; give from_seq, from_ts or tail", field="from")
        return
    if command.topic is None:
        raise invalid("a subscription with a group has one topic: give topic", field="topic")
    if command.tail or command.from_seq is not UNSET or command.from_ts is not UNSET:
        raise invalid("the group says where to begin: leave out from_seq, from_ts and tail", field="group")
    if command.from_ is not UNSET:
        check_where(command.from_, "from")


def check_same(command: Ack, group: GroupSubscription) -> None:
    """An ack that says whose it is means this subscription. Raises `invalid_request`."""
    for field, mine in (("group", group.group), ("consumer", group.consumer)):
        given = getattr(command, field)
        if given is not None and given != mine:
            raise invalid(f'this socket\'s subscription of the topic has {field} "{mine}"', field=field)


def check_credits(credits: int | None, field: str, least: int, most: int = limits.WS_CREDITS_MAX) -> None:
    if credits is not None and not least <= credits <= most:
        raise invalid(f"{field} must be a whole number from {least} to {most}", field=field)


def _standing(item: Mapping[str, Any]) -> Standing:
    return Standing(item["cursor"], item["head_seq"], item["earliest_seq"], item["epoch"])
