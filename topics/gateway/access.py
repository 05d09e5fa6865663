"""The door: who asks, may they, and not too many at once. Every request of every transport passes it once, before a
byte of its body is read (topics/gateway/dispatch.py).
"""

from topics.gateway.messages import Request
from topics.gateway.routing import Names, Route, decode_name
from topics.gateway.slots import RequestSlots, StreamSlots
from topics.gateway.visitor import BodyMemory, Visitor
from topics.keys import OPEN, ConnectionKey, KeyRing, authorise, identify


class Door:
    def __init__(
        self,
        ring: KeyRing | None = None,
        *,
        probe_auth: bool = False,
        requests: RequestSlots | None = None,
        streams: StreamSlots | None = None,
        memory: BodyMemory | None = None,
    ) -> None:
        self._ring = ring or KeyRing(())
        self._probe_auth = probe_auth
        self._requests = requests or RequestSlots()
        self._memory = memory or BodyMemory()
        self.streams = streams or StreamSlots()  # for handlers of streams

    def connection_key(self) -> ConnectionKey:
        return ConnectionKey(self._ring)

    def visitor(self, keys: ConnectionKey | None = None) -> Visitor:
        """One for each connection of HTTP/1; one for each stream of HTTP/2, which share their connection's `keys`."""
        return Visitor(keys or self.connection_key(), self._requests, self._memory)

    def admit(self, route: Route, names: Names, request: Request) -> None:
        """Sets `principal`, `name` and `group` of the request. Raises `unauthorized`, `forbidden`, `throttled`."""
        access, visitor = route.access, request.visitor
        assert visitor is not None
        if access.needs_key or self._probe_auth:
            query = request.query if access.query_token else b""
            request.principal = identify(visitor.keys, request.headers.get(b"authorization"), query)
        else:
            request.principal = OPEN
        if names:
            request.name = decode_name(names[0])
            if len(names) > 1:
                request.group = decode_name(names[1], "group")
        if names and access.names_topic:
            authorise(request.principal, access.scopes, request.name)
        elif not access.owned:
            authorise(request.principal, access.scopes)
        if request.principal.index >= 0 and not route.stream:
            visitor.enter(request.principal.index)
