"""Watch: create a session, open its stream (API §7)."""

import base64
import re
import secrets

import msgspec

from topics import errors, limits
from topics.core import watching
from topics.errors import TopicsError, invalid, topic_not_found
from topics.gateway import sse
from topics.gateway.accept import accepts
from topics.gateway.bodies import read_body
from topics.gateway.dispatch import Gateway
from topics.gateway.live import Live
from topics.gateway.messages import Refusal, Request, Response
from topics.gateway.routing import Route
from topics.gateway.watch_stream import LATER, Attachment, WatchStream, owner_of
from topics.keys import ROUTE_SCOPES, authorise

WID_BYTES = 16
WID_PATTERN = f"wid_[A-Za-z0-9_-]{{1,{limits.WATCH_ID_MAX - len('wid_')}}}"  # more than ours: none is known, 404
_WID = re.compile(WID_PATTERN)
_encode = msgspec.json.Encoder().encode


async def create(gateway: Gateway, request: Request) -> Response:
    live = live_of(gateway)
    lenient = request.flag("lenient", False)
    subscription, starts = watching.parse_watch(await read_body(request, gateway.limits.request_bytes), gateway.limits)
    authorise(request.principal, 0, *starts)
    found = await live.places(starts)
    for topic in starts:
        if topic not in found and not lenient:
            raise topic_not_found(topic)
    shown, cursors = {}, {}
    for topic, place in ((topic, found[topic]) for topic in starts if topic in found):
        cursors[topic] = (place.from_seq, place.epoch)
        shown[topic] = place.shown()
    subscription = msgspec.structs.replace(subscription, topics=tuple(cursors))
    wid = new_wid()
    head = {"wid": wid, "owner": request.principal.fingerprint(), "cursors": cursors}
    await live.shards.call(wid, "watch.create", head, watching.pack(subscription))
    answer = {
        "wid": wid,
        "stream_url": f"/v0/watch/{wid}",
        "session_ttl_ms": gateway.limits.watch_session_ttl_ms,
        "topics": shown,
    }
    return Response(_encode(answer)[:-1], 200, {})


async def stream(gateway: Gateway, request: Request) -> Response:
    live = live_of(gateway)
    await check_access(live, request)
    check_accept(request)
    wid = request.name
    if not _WID.fullmatch(wid):
        raise invalid("this is not the id of a watch session; POST /v0/watch gives one", field="wid")
    if request.method == "HEAD":  # must not take the session over
        await look(live, request)
        return Response(b"", content_type=sse.CONTENT_TYPE, headers=sse.HEADERS)
    last_id = request.headers.get(b"last-event-id", b"").decode("latin-1") or request.args.get("cursor", "")
    slot = gateway.door.streams.take(request.principal.index)
    attachment = Attachment(live, wid, request.principal)
    try:
        session = await attachment.open()
    except TopicsError as error:
        if error.code not in LATER:
            slot.close()
            raise
        session = None  # the stream begins when the shard of the session is back
    except BaseException:
        slot.close()
        raise
    body = WatchStream(live, wid, attachment, session, slot, last_id)
    return Response(b"", content_type=sse.CONTENT_TYPE, headers=sse.HEADERS, stream=body)


async def check_access(live: Live, request: Request) -> None:
    """A session of another key is that key's, whatever this one may do: 401. Else 403 without the scope."""
    scopes = ROUTE_SCOPES["watch.stream"].scopes
    if request.principal.allows(scopes):
        return  # whose session it is will show when the stream takes it
    if _WID.fullmatch(request.name):
        try:
            await look(live, request)
        except TopicsError as error:
            if error.code == errors.UNAUTHORIZED:
                raise
    authorise(request.principal, scopes)


async def look(live: Live, request: Request) -> None:
    """Raises what a stream of this session would be refused with. While its shard is down a stream would be opened."""
    try:
        await live.shards.call(request.name, "watch.look", {"wid": request.name, "owner": owner_of(request.principal)})
    except TopicsError as error:
        if error.code not in LATER:
            raise


def live_of(gateway: Gateway) -> Live:
    if gateway.live is None:
        raise TopicsError(errors.NOT_READY, "the gateway is starting", {"retry_after_ms": 500})
    return gateway.live


def new_wid() -> str:
    return "wid_" + base64.urlsafe_b64encode(secrets.token_bytes(WID_BYTES)).decode().rstrip("=")


def check_accept(request: Request) -> None:
    accept = request.headers.get(b"accept")
    if accept is not None and not accepts(accept, sse.MEDIA_TYPE):
        raise TopicsError(errors.NOT_ACCEPTABLE, "this is an event stream: send Accept: text/event-stream")


async def no_upgrade(gateway: Gateway, request: Request) -> Response:
    """A WebSocket begins with an upgrade, which never comes this way (handover.py)."""
    raise Refusal(426, "this is a WebSocket: connect to it with a WebSocket client")


ROUTES = (
    Route("GET", "/v0/ws", no_upgrade, "ws.open"),
    Route("POST", "/v0/watch", create, "watch.create"),
    Route("GET", "/v0/watch/:wid", stream, "watch.stream", hot=True, stream=True),
)
