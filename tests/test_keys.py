"""API keys: the grammar of entries. Who a token belongs to is in test_keyring.py."""

import string

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.keys import (
    ADMIN,
    ALL,
    DELETE,
    READ,
    WRITE,
    KeyDigest,
    KeyRing,
    KeysError,
    digest_of,
    entries_of_file,
    entries_of_variable,
    parse_entries,
)

WORDS = {"read": READ, "write": WRITE, "delete": DELETE, "admin": ADMIN, "rw": READ | WRITE}
WORDS |= {"r": READ, "w": WRITE, "d": DELETE, "a": ADMIN}
VISIBLE = [chr(n) for n in range(0x21, 0x7F)]
secrets = st.text([c for c in VISIBLE if c not in ",:"], min_size=1, max_size=40)
scopes = st.lists(st.sampled_from(sorted(WORDS)), max_size=4)
prefixes = st.lists(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:>-]{0,20}", fullmatch=True), max_size=3)
blanks = st.text(" \t\n\r", max_size=2)


def parse(text):
    return parse_entries(entries_of_variable(text, "TOPICS_API_KEYS"))


def ring_of(text):
    return KeyRing(parse(text))


def digest(secret):
    return digest_of(secret.encode()).hex()


# --- the grammar --------------------------------------------------------------------------------------------------


def write_entry(secret, words, names):
    if names:
        return f"{secret}:{'+'.join(words)}:{'|'.join(names)}"
    return f"{secret}:{'+'.join(words)}" if words else secret


@given(st.lists(st.tuples(secrets, scopes, prefixes, blanks), min_size=1, max_size=5, unique_by=lambda key: key[0]))
def test_what_is_written_is_what_is_parsed(wanted):
    text = ",".join(blank + write_entry(secret, words, names) + blank for secret, words, names, blank in wanted)
    expected = []
    for secret, words, names, _ in wanted:
        bits = 0
        for word in words:
            bits |= WORDS[word]
        expected.append(KeyDigest(digest(secret), bits or ALL, tuple(dict.fromkeys(names))))
    assert parse(text) == expected
    lines = "".join(f"# note\n\n {entry.strip()}\r\n" for entry in text.split(","))
    if not any(secret.startswith("#") for secret, *_ in wanted):
        assert parse_entries(entries_of_file(lines, "f")) == expected


@pytest.mark.parametrize(
    ("entry", "bits", "names"),
    [
        ("k", ALL, ()),
        ("k:", ALL, ()),
        ("k::", ALL, ()),
        ("k:read", READ, ()),
        ("k:rw+d", READ | WRITE | DELETE, ()),
        ("k:r+w+d+a", ALL, ()),
        ("k:read:tenant42:", READ, ("tenant42:",)),
        ("k::tenant42:|shared.", ALL, ("tenant42:", "shared.")),
        ("k:admin:a->b|x", ADMIN, ("a->b", "x")),
        ("  k:write  ", WRITE, ()),
    ],
)
def test_entries(entry, bits, names):
    assert parse(entry) == [KeyDigest(digest("k"), bits, names)]


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("", "is empty"),
        ("   ", "is empty"),
        (":read", "has no secret"),
        ("::", "has no secret"),
        ("HUSH:reed", "unknown scope"),
        ("HUSH:READ", "unknown scope"),
        ("HUSH:read+", "unknown scope"),
        ("HUSH:read write", "unknown scope"),
        ("HUSH:read|write", "unknown scope"),
        ("read:HUSH", "unknown scope"),
        ("r:r:_HUSH", "prefix that no name begins with"),
        ("HUSH::a||b", "prefix that no name begins with"),
        ("HUSH::|", "prefix that no name begins with"),
        ("HUSH::.a", "prefix that no name begins with"),
        ("HUSH::a/b", "prefix that no name begins with"),
        ("HUSH::a*", "prefix that no name begins with"),
        ("HUSH::" + "a" * 256, "prefix that no name begins with"),
        ("HU SH", "visible ASCII"),
        ("HUSH # comment", "visible ASCII"),
        ("HUSH\x7f", "visible ASCII"),
        ("HUSHé", "visible ASCII"),
        ("HUSH" * 200, "visible ASCII"),
    ],
)
def test_what_is_malformed_is_refused_by_position_and_not_quoted(entry, says):
    with pytest.raises(KeysError) as refused:
        parse(f"good1,good2:rw,{entry},good4")
    assert str(refused.value).startswith("entry 3 of TOPICS_API_KEYS")
    assert says in str(refused.value)
    assert "HUSH" not in str(refused.value)
    assert "good" not in str(refused.value)


@given(st.text(string.printable, max_size=30), st.integers(0, 3))
def test_any_text_is_parsed_or_refused_at_its_place(entry, before):
    entry = entry.replace(",", "")
    message = ""
    try:
        assert len(parse("".join(f"k{n}," for n in range(before)) + entry)) == before + 1
    except KeysError as error:
        message = str(error)
    assert not message or message.startswith(f"entry {before + 1} of TOPICS_API_KEYS")


def test_a_secret_stands_once():
    with pytest.raises(KeysError) as refused:
        parse("HUSH:read,other,HUSH:write")
    assert str(refused.value) == "entry 3 of TOPICS_API_KEYS has the same secret as entry 1 of TOPICS_API_KEYS"


def test_lines_of_a_file_are_counted_with_what_is_skipped():
    with pytest.raises(KeysError, match=r"^line 4 of the file "):
        parse_entries(entries_of_file("# keys\n\ngood\nHUSH:nothing\n", "the file"))
    with pytest.raises(KeysError, match=r"^line 1 of the file"):
        parse_entries(entries_of_file("a,b", "the file"))


def test_digests_travel_without_the_secret_and_are_not_shown():
    found = parse("HUSH:rw:a.")
    text = msgspec.json.encode(found)
    assert msgspec.json.decode(text, type=list[KeyDigest]) == found
    assert b"HUSH" not in text
    assert found[0].digest not in f"{found[0]!r} {found[0]} {ring_of('HUSH').authenticate(b'HUSH')!r}"
