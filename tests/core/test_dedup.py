"""Sifting a write: of records with one key one is left, and every other is told its seq."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.strategies import many
from topics.core.dedup import sift
from topics.core.idempotency import KeyWindow, digest_key, digest_record_key
from topics.core.requests import Append, decode_append
from topics.errors import TopicsError
from topics.limits import KIB, Limits

NOW, WINDOW = 1000, 100
keys = st.one_of(st.none(), st.sampled_from(["a", "b", "c", "d", "é"]))


def request(*keys: str | None) -> Append:
    records = [{"data": n} | ({} if key is None else {"dedup_key": key}) for n, key in enumerate(keys)]
    return decode_append(msgspec.json.encode({"records": records}), "t", Limits())


def window(known: dict[str, tuple[int, int]]) -> KeyWindow:
    made = KeyWindow()
    for key, (seq, ts) in sorted(known.items(), key=lambda item: item[1][1]):
        made.add(digest_record_key(key), seq, 1, ts)
    return made


@many
@given(
    st.lists(keys, min_size=1, max_size=12),
    st.dictionaries(st.sampled_from(["a", "b", "é", "z"]), st.tuples(st.integers(1, 40), st.integers(NOW - 150, NOW))),
)
def test_against_a_plain_reference(given_keys, known):
    wanted: list[int] = []
    told, seqs = {}, {key: seq for key, (seq, ts) in known.items() if NOW - ts <= WINDOW}
    for index, key in enumerate(given_keys):
        if key is not None and key in seqs:
            told[index] = seqs[key]
            continue
        if key is not None:
            seqs[key] = 41 + len(wanted)
        wanted.append(index)
    sifted = sift(request(*given_keys), window(known), 41, NOW, WINDOW)
    assert [int(bytes(record.data)) for record in sifted.request.records] == wanted
    assert dict(sifted.duplicates) == told
    kept = {wanted.index(i): digest_record_key(given_keys[i]) for i in wanted if given_keys[i] is not None}
    assert dict(sifted.request.dedups) == kept


def test_without_duplicates_the_request_is_as_it_was():
    one = request("a", None, "b")
    assert sift(one, None, 1, NOW, WINDOW).request is one


def test_the_two_sorts_of_keys_never_meet():
    assert digest_key("a") != digest_record_key("a")


@pytest.mark.parametrize("key", ["", "x" * 257])
def test_a_key_has_1_to_256_characters(key):
    with pytest.raises(TopicsError) as refused:
        request(None, key)
    assert refused.value.detail == {"index": 1, "field": "dedup_key"}
    assert "records[1].dedup_key must have 1 to 256 characters" in refused.value.message


def test_a_large_body_in_pieces_has_all_its_keys():
    records = [{"dedup_key": f"k{n % 700}", "data": "x" * 900} for n in range(1500)]
    body = msgspec.json.encode({"records": records})
    assert len(body) > 4 * 256 * KIB
    found = decode_append(body, "t", Limits())
    assert found.dedups == tuple((n, digest_record_key(f"k{n % 700}")) for n in range(1500))
    assert len(sift(found, None, 1, NOW, WINDOW).request.records) == 700
