"""Golden entries of the books `$sessions`, `$routers` and `$links`, kept in tests/golden_hidden: key and value in turn.

Written anew like those of test_formats.py. What a book is made of, records of a topic, is golden there.
"""

import msgpack
import msgspec
import pytest

from tests.shards.test_formats import REGENERATE
from tests.shards.test_hidden_formats import GOLDEN, golden
from topics.core import watching
from topics.core.match import TagMatch
from topics.core.routes import Definition
from topics.core.watching import Subscription
from topics.shards import links, routers, session, sessions
from topics.shards.links import Link
from topics.shards.routers import Router
from topics.shards.session import Session

NOW = 1_700_000_000_000
WATCHED = Subscription(("a", "é:1"), ("n1",), 7, 4096, 15_000, meta=False, tags=True, data=True, strong=True)
PLAIN = Router(NOW * 1000, Definition("a", "b"), 7, 8, 40, NOW)
FULL = Router(
    NOW * 1000 + 1,
    Definition("a", "é:1", False, False, TagMatch("Glob", "user-"), True, "exactly_once"),
    7, 2**40, 0, NOW, held=3,
)  # fmt: skip
LINK = Link(NOW * 1000, "a", "b", 8)


def a_session() -> Session:
    made = Session("w_1", "ops", NOW, {"a": (40, 3), "é:1": (2**40, 1)})
    made.clean = True
    return made


BOOKS = {
    "sessions": {
        session.DEFINITION + "w_1": a_session().definition(watching.pack(WATCHED)),
        session.SAVED + "w_1": a_session().saved(),
        sessions.STOPPED: b"",
    },
    "routers": {"a->b": routers._encode(PLAIN), "a->é": routers._encode(FULL)},
    "links": {"a->b": links._encode(LINK)},
}


def stored(name: str) -> dict[str, bytes]:
    parts = golden(name)
    return {key.decode(): value for key, value in zip(parts[::2], parts[1::2], strict=True)}


@pytest.fixture(scope="module", autouse=True)
def _regenerate() -> None:
    if REGENERATE:
        for name, entries in BOOKS.items():
            parts = [part for key, value in entries.items() for part in (key.encode(), value)]
            (GOLDEN / name).write_bytes(b"".join(len(part).to_bytes(4, "little") + part for part in parts))


@pytest.mark.parametrize("name", BOOKS)
def test_the_bytes_are_the_golden_ones(name):
    assert BOOKS[name] == stored(name), f"the form of ${name} changed; see test_formats.py"


def test_the_golden_entries_are_read():
    made, saved, _ = stored("sessions").values()
    definition = session.decode_definition(made)
    assert (definition.created_ms, definition.owner) == (NOW, "ops")
    assert definition.cursors == {"a": (40, 3), "é:1": (2**40, 1)} == session.decode_saved(saved).cursors
    assert watching.unpack(definition.definition) == WATCHED
    assert session.decode_saved(saved).clean is True
    assert [msgspec.msgpack.decode(entry, type=Router) for entry in stored("routers").values()] == [PLAIN, FULL]
    assert [msgspec.msgpack.decode(entry, type=Link) for entry in stored("links").values()] == [LINK]


def test_the_tables():
    """docs/formats.md, with nothing but msgpack."""
    cursors = {"a": [40, 3], "é:1": [2**40, 1]}
    assert [*stored("sessions")] == ["d:w_1", "c:w_1", "stopped"]
    made, saved, stopped = stored("sessions").values()
    assert msgpack.unpackb(made)[:3] == [NOW, "ops", cursors]
    assert isinstance(msgpack.unpackb(made)[3], bytes)
    assert (msgpack.unpackb(saved), stopped) == ([True, cursors], b"")
    plain, full = (msgpack.unpackb(entry) for entry in stored("routers").values())
    assert plain == [NOW * 1000, ["a", "b", True, True, None, False, "at_least_once"], 7, 8, 40, NOW, -1]
    wanted = {"op": "Glob", "value": "user-"}
    assert full == [NOW * 1000 + 1, ["a", "é:1", False, False, wanted, True, "exactly_once"], 7, 2**40, 0, NOW, 3]
    assert [msgpack.unpackb(entry) for entry in stored("links").values()] == [[NOW * 1000, "a", "b", 8]]


def test_a_router_from_before_it_told_what_was_held_is_read():
    entry = msgpack.packb(msgpack.unpackb(stored("routers")["a->é"])[:6])
    assert msgspec.msgpack.decode(entry, type=Router).held == -1
