"""API keys: who a token belongs to, how requests bring it, what each route asks for."""

from urllib.parse import quote_plus, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.test_keys import digest, parse, prefixes, secrets
from topics import errors, keys
from topics.errors import TopicsError
from topics.keys import (
    ADMIN,
    ALL,
    DELETE,
    OPEN,
    READ,
    ROUTE_SCOPES,
    WRITE,
    ConnectionKey,
    KeyDigest,
    KeyRing,
    KeysError,
    authorise,
    digest_of,
    identify,
    parse_bearer,
    token_from_query,
)


def ring_of(text):
    return KeyRing(parse(text))


def test_every_key_is_found_and_nothing_else():
    ring = ring_of(",".join(f"secret{n}" for n in range(20)))
    for n in range(20):
        found = ring.authenticate(f"secret{n}".encode())
        assert found is not None
        assert found.index == n
    for token in (b"", b"secret", b"secret20", b"SECRET1", b"secret1 ", bytes.fromhex(digest("secret1")), None):
        assert ring.authenticate(token) is None


def test_without_keys_everybody_is_open_and_may_do_everything():
    ring = KeyRing([])
    for token in (None, b"", b"whatever"):
        assert ring.authenticate(token) is OPEN
        assert ConnectionKey(ring).authenticate(token) is OPEN
    assert OPEN.allows(ALL)
    assert OPEN.covers("anything")
    assert OPEN.owns("whoever created it")


@pytest.mark.parametrize("token", [b"k0", b"k6", b"none of them"])
def test_a_token_is_compared_with_every_key_whichever_matches(monkeypatch, token):
    compared = []

    def compare(ours, theirs):
        compared.append((ours, theirs))
        return ours == theirs

    monkeypatch.setattr(keys, "compare_digest", compare)
    ring_of("k0,k1,k2,k3,k4,k5,k6").authenticate(token)
    assert [ours.hex() for ours, _ in compared] == [digest(f"k{n}") for n in range(7)]
    assert {theirs for _, theirs in compared} == {digest_of(token)}


def test_a_connection_remembers_the_last_key_that_was_accepted(monkeypatch):
    connection = ConnectionKey(ring_of("a:read,b:write"))
    looked_up, find = [], KeyRing.find

    def watched(ring, digest):
        looked_up.append(digest)
        return find(ring, digest)

    monkeypatch.setattr(KeyRing, "find", watched)
    tokens = [b"a", b"a", b"wrong", b"wrong", b"a", b"b", b"b", b"a", None]
    found = [connection.authenticate(token) for token in tokens]
    assert [principal and principal.index for principal in found] == [0, 0, None, None, 0, 1, 1, 0, None]
    assert looked_up == [digest_of(token) for token in (b"a", b"wrong", b"wrong", b"b", b"a")]


def test_a_ring_of_the_same_digest_twice_is_refused():
    with pytest.raises(KeysError, match="distinct"):
        KeyRing([KeyDigest(digest("a"), READ), KeyDigest(digest("a"), WRITE)])
    with pytest.raises(KeysError, match="distinct"):
        KeyRing([KeyDigest("ab", READ)])


def test_fingerprints_are_stable_tell_keys_apart_and_are_no_digest():
    one, two = ring_of("a,b"), ring_of("b:read,c,a::x")
    a, b = one.authenticate(b"a"), one.authenticate(b"b")
    assert a is not None
    assert b is not None
    again = two.authenticate(b"a")
    assert again is not None
    assert again.fingerprint() == a.fingerprint()  # also with other scopes, at another place
    assert a.owns(again.fingerprint())
    assert not b.owns(a.fingerprint())
    assert not a.owns("")  # made when there were no keys
    assert a.fingerprint() not in digest("a")
    assert one.authenticate(a.fingerprint().encode()) is None


@given(st.integers(0, ALL), st.integers(0, ALL))
def test_a_key_allows_what_it_has_all_of(has, asked):
    principal = keys.Principal(0, has)
    assert principal.allows(asked) is (has | asked == has)


@given(prefixes, st.from_regex(r"[a-zA-Z0-9._:>-]{1,10}", fullmatch=True))
def test_a_key_covers_names_that_begin_with_a_prefix(names, name):
    assert keys.Principal(0, ALL, tuple(names)).covers(name) is (not names or any(map(name.startswith, names)))


# --- requests -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "token"),
    [
        (b"Bearer abc", b"abc"),
        (b"bearer   abc \t", b"abc"),
        (b"BEARER a=b+c/~", b"a=b+c/~"),
        (b"Bearer " + b"x" * 512, b"x" * 512),
        (b"Bearer " + b"x" * 513, None),
        (None, None),
        (b"", None),
        (b"Bearer", None),
        (b"Bearer ", None),
        (b"Bearer a b", None),
        (b"Bearer\tabc", None),
        (b" Bearer abc", None),
        (b"Basic abc", None),
        (b"Bearerabc", None),
        (b"abc", None),
    ],
)
def test_bearer_headers(header, token):
    assert parse_bearer(header) == token


@pytest.mark.parametrize(
    ("query", "token"),
    [
        (b"token=abc", b"abc"),
        (b"a=1&token=abc&b=2", b"abc"),
        (b"token=first&token=second", b"first"),
        (b"token=&token=second", None),
        (b"token=a%2Bb%3D", b"a+b="),
        (b"token=a+b", b"a b"),
        (b"%74oken=abc", b"abc"),
        (b"token=%zz%4", b"%zz%4"),
        (b"token=a=b", b"a=b"),
        (b"token=\xff%ff", b"\xff\xff"),
        (b"tokens=abc&xtoken=abc&Token=abc", None),
        (b"token", None),
        (b"", None),
        (b"&&;=&", None),
        (b"token=" + b"x" * 513, None),
    ],
)
def test_tokens_in_queries(query, token):
    assert token_from_query(query) == token


@given(secrets, st.dictionaries(st.text(max_size=5).filter(lambda name: name != "token"), st.text(max_size=5)))
def test_a_token_that_was_encoded_is_decoded(secret, others):
    assert token_from_query(f"{urlencode(others)}&token={quote_plus(secret)}".encode()) == secret.encode()


def code_of(call, *arguments):
    with pytest.raises(TopicsError) as refused:
        call(*arguments)
    return refused.value.code


def test_a_valid_header_wins_over_the_query():
    ring = ring_of("a,b")
    assert identify(ring, b"Bearer a", b"token=b").index == 0
    assert identify(ring, b"Bearer wrong", b"token=b").index == 1
    assert identify(ConnectionKey(ring), None, b"token=b").index == 1
    assert code_of(identify, ring, b"Bearer wrong", b"token=wrong") == errors.UNAUTHORIZED
    assert code_of(identify, ring, None) == errors.UNAUTHORIZED
    assert identify(KeyRing([]), b"Bearer wrong") is OPEN


def test_authorise_names_what_is_missing():
    key = ring_of("k:read:a.|b.").authenticate(b"k")
    assert key is not None
    authorise(key, READ, "a.x", "b.y")
    authorise(key, 0)
    with pytest.raises(TopicsError, match="lacks the scope write and admin") as refused:
        authorise(key, READ | WRITE | ADMIN, "a.x")
    assert (refused.value.code, refused.value.detail) == (errors.FORBIDDEN, {"scopes": ["write", "admin"]})
    with pytest.raises(TopicsError, match="may not touch") as refused:
        authorise(key, READ, "a.x", "c")
    assert (refused.value.code, refused.value.detail) == (errors.FORBIDDEN, {"name": "c"})


def test_the_table_of_routes():
    wanted = {
        READ: "topic.state topic.list topic.diff topic.seek router.state router.list watch.create watch.stream "
        "ws.subscribe ws.credit metrics group.state group.list group.fetch",
        WRITE: "topic.append ws.publish queue.ack queue.nack queue.extend",
        DELETE: "topic.remove topic.delete router.remove group.remove",
        ADMIN: "topic.put router.put",
        READ | WRITE: "queue.claim queue.work group.put group.ack group.seek ws.ack",
        READ | WRITE | DELETE: "queue.redrive",
        WRITE | ADMIN: "topic.append_config ws.publish_config",
        0: "ws.open health ready openapi docs",
    }
    assert {name: access.scopes for name, access in ROUTE_SCOPES.items()} == {
        name: bits for bits, names in wanted.items() for name in names.split()
    }
    assert {name for name, access in ROUTE_SCOPES.items() if not access.needs_key} == {
        "health",
        "ready",
        "openapi",
        "docs",
    }
    assert {name for name, access in ROUTE_SCOPES.items() if access.query_token} == {"watch.stream", "queue.work"}
