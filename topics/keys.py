"""API keys: what an entry says, who a request comes from, what each route asks of a key.

    entry     secret[:scopes[:prefixes]]
    scopes    read, write, delete, admin (or r, w, d, a; rw is both), joined by '+'; empty means all
    prefixes  beginnings of topic and router names, joined by '|'; empty means any name

The supervisor reads entries once, keeps a `KeyDigest` of each and forgets the rest (topics/supervisor/keyload.py).
Gateways get the digests and make a `KeyRing` of them. Invariants: no secret outlives parsing; an error names where an
entry stands and quotes nothing of it, since a slip may put the secret into any field; every token is compared with
every key in constant time. Without keys everybody is `OPEN`, who may do everything.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from hmac import compare_digest
from itertools import compress, repeat
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

import msgspec

from topics import errors
from topics.errors import TopicsError
from topics.limits import NAME_MAX

# Bits of plain ints: this is on the path of every request, and enum arithmetic costs more than the rest of it.
READ, WRITE, DELETE, ADMIN = 1, 2, 4, 8
ALL = READ | WRITE | DELETE | ADMIN
SCOPES = {"read": READ, "write": WRITE, "delete": DELETE, "admin": ADMIN}
SCOPE_WORDS = SCOPES | {"r": READ, "w": WRITE, "d": DELETE, "a": ADMIN, "rw": READ | WRITE}

SECRET_MAX = 512
BLANK = " \t\r\n"
_SECRET = re.compile(r"[!-+\--9;-~]+")  # visible ASCII without ',' and ':', so that every client can send it
_PREFIX = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._:>-]{{0,{NAME_MAX - 1}}}")
_BEARER = re.compile(rb"[Bb][Ee][Aa][Rr][Ee][Rr] +([^ \t]+)[ \t]*")


class KeysError(Exception):
    """Keys that cannot be used. The message says where and what is allowed, and quotes nothing."""


class KeyDigest(msgspec.Struct, frozen=True):
    """What is kept of an entry, and how it travels to the gateways."""

    digest: str  # SHA-256 of the secret, hex
    scopes: int
    prefixes: tuple[str, ...] = ()

    def __repr__(self) -> str:  # the digest of a weak secret gives it away
        return f"KeyDigest({'+'.join(scope_names(self.scopes))}, {self.prefixes})"


# --- entries ------------------------------------------------------------------------------------------------------


def entries_of_variable(text: str, source: str) -> list[tuple[str, str]]:
    """Comma-separated entries, each with its place for messages."""
    return [(f"entry {n} of {source}", entry.strip(BLANK)) for n, entry in enumerate(text.split(","), 1)]


def entries_of_file(text: str, source: str) -> list[tuple[str, str]]:
    """One entry a line; blank lines and lines that begin with # are skipped."""
    lines = ((f"line {n} of {source}", line.strip(BLANK)) for n, line in enumerate(text.split("\n"), 1))
    return [(where, line) for where, line in lines if line and not line.startswith("#")]


def parse_entries(entries: Iterable[tuple[str, str]]) -> list[KeyDigest]:
    """All entries, in order. Raises KeysError at the first that is wrong, or whose secret an earlier one has."""
    keys: list[KeyDigest] = []
    places: dict[str, str] = {}
    for where, entry in entries:
        key = parse_entry(entry, where)
        if key.digest in places:
            raise KeysError(f"{where} has the same secret as {places[key.digest]}")
        places[key.digest] = where
        keys.append(key)
    return keys


def parse_entry(entry: str, where: str) -> KeyDigest:
    if not entry:
        raise KeysError(f"{where} is empty")
    secret, *rest = entry.split(":", 2)
    scopes, prefixes = (*rest, "", "")[:2]
    if not secret:
        raise KeysError(f"{where} has no secret before its first ':'")
    if not _SECRET.fullmatch(secret) or len(secret) > SECRET_MAX:
        raise KeysError(f"{where}: a secret is 1 to {SECRET_MAX} visible ASCII characters without ',' and ':'")
    return KeyDigest(digest_of(secret.encode()).hex(), _parse_scopes(scopes, where), _parse_prefixes(prefixes, where))


def _parse_scopes(text: str, where: str) -> int:
    if not text:
        return ALL
    scopes = 0
    for word in text.split("+"):
        if word not in SCOPE_WORDS:
            raise KeysError(f"{where} has an unknown scope; it takes {', '.join(SCOPE_WORDS)}, joined by '+'")
        scopes |= SCOPE_WORDS[word]
    return scopes


def _parse_prefixes(text: str, where: str) -> tuple[str, ...]:
    prefixes = text.split("|") if text else []
    if not all(_PREFIX.fullmatch(prefix) for prefix in prefixes):
        raise KeysError(
            f"{where} has a prefix that no name begins with; prefixes have 1 to {NAME_MAX} characters of "
            "A-Z a-z 0-9 . _ : - > each, begin with a letter or a digit, and are joined by '|'"
        )
    return tuple(dict.fromkeys(prefixes))


def scope_names(scopes: int) -> list[str]:
    return [name for name, bit in SCOPES.items() if scopes & bit]


# --- principals ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks: one configured key, or everybody if there are none."""

    index: int  # of the key over all sources, from 0; per-key counters on the board use it. -1: everybody
    scopes: int
    prefixes: tuple[str, ...] = ()
    mark: str = field(default="", repr=False)

    def allows(self, scopes: int) -> bool:
        return not scopes & ~self.scopes

    def covers(self, name: str) -> bool:
        """Names are ASCII, so this compares bytes."""
        return not self.prefixes or name.startswith(self.prefixes)

    def fingerprint(self) -> str:
        """Tells keys apart over restarts and reordering; to be stored with what a key creates. Opens nothing."""
        return self.mark

    def owns(self, fingerprint: str) -> bool:
        """Whether what was created under `fingerprint` is this one's. Without keys, everything is everybody's."""
        return self.index < 0 or compare_digest(self.mark.encode(), fingerprint.encode())


OPEN = Principal(-1, ALL)


def digest_of(token: bytes) -> bytes:
    return sha256(token).digest()


def fingerprint_of(digest: bytes) -> str:
    return sha256(b"topics key fingerprint\0" + digest).hexdigest()[:32]


class KeyRing:
    """All keys of an instance. `authenticate` costs the same whichever key matches, and if none does."""

    def __init__(self, keys: Sequence[KeyDigest]) -> None:
        self._digests = [bytes.fromhex(key.digest) for key in keys]
        if len(set(self._digests)) != len(keys) or any(len(digest) != 32 for digest in self._digests):
            raise KeysError("the digests of the keys are not distinct SHA-256 digests")
        self._positions = list(range(1, len(keys) + 1))
        self._principals: list[Principal | None] = [None]
        for n, key in enumerate(keys):
            self._principals.append(Principal(n, key.scopes, key.prefixes, fingerprint_of(self._digests[n])))

    def __len__(self) -> int:
        return len(self._digests)

    def authenticate(self, token: bytes | None) -> Principal | None:
        """None: not a key of ours. Without keys everybody is OPEN and the token is not looked at."""
        if not self._digests:
            return OPEN
        return self.find(digest_of(token)) if token is not None else None

    def find(self, digest: bytes) -> Principal | None:
        # `compress` runs through all comparisons and passes on the position of the one that holds, if one does.
        return self._principals[sum(compress(self._positions, map(compare_digest, self._digests, repeat(digest))))]


class ConnectionKey:
    """A ring with a memory of one: a client that sends the same key again on its connection is not looked up again.

    What is remembered is the digest, and only of a key that was accepted. A client can learn from the time an answer
    takes that a token was the last one accepted on this connection: it has to know that token for it.
    """

    __slots__ = ("_digest", "_principal", "_ring")

    def __init__(self, ring: KeyRing) -> None:
        self._ring = ring
        self._digest = b""
        self._principal: Principal | None = None

    def authenticate(self, token: bytes | None) -> Principal | None:
        if token is None or not self._ring:
            return self._ring.authenticate(token)
        digest = digest_of(token)
        if self._principal is not None and compare_digest(digest, self._digest):
            return self._principal
        principal = self._ring.find(digest)
        if principal is not None:
            self._digest, self._principal = digest, principal
        return principal


# --- requests -----------------------------------------------------------------------------------------------------


def parse_bearer(header: bytes | None) -> bytes | None:
    """The token of an Authorization header, None if it holds no bearer token that could be a key."""
    found = _BEARER.fullmatch(header) if header is not None else None
    return found[1] if found is not None and len(found[1]) <= SECRET_MAX else None


def token_from_query(raw_query: bytes) -> bytes | None:
    """The first `token` of an x-www-form-urlencoded query, decoded. Only for routes whose `Access` says so."""
    for pair in raw_query.split(b"&"):
        name, _, value = pair.partition(b"=")
        if _decode_form(name) == b"token":
            token = _decode_form(value)
            return token if 0 < len(token) <= SECRET_MAX else None
    return None


def _decode_form(text: bytes) -> bytes:
    return unquote_to_bytes(text.replace(b"+", b" "))


def identify(keys: KeyRing | ConnectionKey, header: bytes | None, raw_query: bytes = b"") -> Principal:
    """Who sent a request. Raises `unauthorized`. A valid header wins over a token in `raw_query`."""
    principal = keys.authenticate(parse_bearer(header))
    if principal is None and raw_query:
        principal = keys.authenticate(token_from_query(raw_query))
    if principal is None:
        raise TopicsError(errors.UNAUTHORIZED, "a valid API key is needed: Authorization: Bearer <key>")
    return principal


def authorise(principal: Principal, scopes: int, *names: str) -> None:
    """Raises `forbidden` unless the principal has all `scopes` and may touch all `names`."""
    missing = scopes & ~principal.scopes
    if missing:
        lacks = scope_names(missing)
        raise TopicsError(errors.FORBIDDEN, f"the API key lacks the scope {' and '.join(lacks)}", {"scopes": lacks})
    for name in names:
        if not principal.covers(name):
            raise TopicsError(errors.FORBIDDEN, "the API key may not touch this name", {"name": name[:NAME_MAX]})


class Access(NamedTuple):
    """What a route asks for."""

    scopes: int
    needs_key: bool = True
    query_token: bool = False  # a browser's EventSource cannot send headers
    names_topic: bool = True  # the name in its path is one that prefixes are about
    owned: bool = False  # what its path names is one key's: the handler says so first, then checks the scopes


# Commands of a WebSocket are checked one by one; opening it takes a key and no scope. `topic.append_config` and
# `ws.publish_config` are appends that bring a `config`: they may create a topic as no plain write could.
ROUTE_SCOPES: Mapping[str, Access] = {
    "topic.put": Access(ADMIN),
    "topic.state": Access(READ),
    "topic.list": Access(READ),
    "topic.remove": Access(DELETE),
    "topic.append": Access(WRITE),
    "topic.append_config": Access(WRITE | ADMIN),
    "topic.diff": Access(READ),
    "topic.seek": Access(READ),
    "topic.delete": Access(DELETE),
    "router.put": Access(ADMIN),
    "router.state": Access(READ),
    "router.list": Access(READ),
    "router.remove": Access(DELETE),
    "watch.create": Access(READ),
    "watch.stream": Access(READ, query_token=True, names_topic=False, owned=True),
    "ws.open": Access(0),
    "ws.subscribe": Access(READ),
    "ws.credit": Access(READ),
    "ws.ack": Access(READ | WRITE),
    "ws.publish": Access(WRITE),
    "ws.publish_config": Access(WRITE | ADMIN),
    "queue.claim": Access(READ | WRITE),
    "queue.ack": Access(WRITE),
    "queue.nack": Access(WRITE),
    "queue.extend": Access(WRITE),
    "queue.redrive": Access(READ | WRITE | DELETE),  # read and delete for the topic in the path, write for the other
    "queue.work": Access(READ | WRITE, query_token=True),
    "group.put": Access(READ | WRITE),
    "group.state": Access(READ),
    "group.list": Access(READ),
    "group.remove": Access(DELETE),
    "group.fetch": Access(READ),  # also one that makes the group: it begins where everybody may read
    "group.ack": Access(READ | WRITE),
    "group.seek": Access(READ | WRITE),
    "metrics": Access(READ),
    "health": Access(0, needs_key=False),  # needs one with TOPICS_PROBE_AUTH
    "ready": Access(0, needs_key=False),
    "openapi": Access(0, needs_key=False),
    "docs": Access(0, needs_key=False),
}
