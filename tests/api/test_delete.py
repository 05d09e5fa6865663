"""Deleting records (API §5)."""

import pytest

from tests.api.instance import envelope


@pytest.fixture
def topic(http, name):
    tags = ["a:1", "a:2", "b:1", None, "a:1"]
    records = [{"data": n, **({"tag": tag} if tag else {})} for n, tag in enumerate(tags, 1)]
    http.post(f"/v0/topics/{name}", json={"records": records})
    return name


def delete(http, topic, **body):
    return http.post(f"/v0/topics/{topic}/delete", json=body)


def left(http, topic):
    return [record["$seq"] for record in http.post(f"/v0/topics/{topic}/diff", json={}).json()["records"]]


@pytest.mark.parametrize(
    ("body", "kept"),
    [
        ({"before_seq": 3}, [3, 4, 5]),
        ({"before_seq": 0}, [1, 2, 3, 4, 5]),
        ({"before_seq": 100}, []),
        ({"match": "a:1"}, [2, 3, 4]),
        ({"match": ["tag", "Eq", "a:1"]}, [2, 3, 4]),
        ({"match": ["tag", "Glob", "a:*"]}, [3, 4]),
        ({"match": ["tag", "Glob", "*"]}, [4]),
        ({"match": ["tag", "Glob", "a:**"]}, [1, 2, 3, 4, 5]),
        ({"match": "a:*"}, [3, 4]),
        ({"match": "a:1", "before_seq": 5}, [2, 3, 4, 5]),
        ({"match": "nothing"}, [1, 2, 3, 4, 5]),
    ],
)
def test_what_goes(http, topic, body, kept):
    answer = delete(http, topic, **body)
    assert answer.status_code == 200
    shown = answer.json()
    assert shown.pop("performance")["server_total_ms"] > 0
    assert shown.pop("bytes") >= 0
    earliest = kept[0] if kept else 6
    assert shown == {
        "topic": topic,
        "deleted": 5 - len(kept),
        "earliest_seq": earliest,
        "head_seq": 5,
        "count": len(kept),
    }
    assert left(http, topic) == kept


def test_it_is_no_standing_filter(http, topic):
    delete(http, topic, match="a:1")
    http.post(f"/v0/topics/{topic}", json={"records": [{"data": 6, "tag": "a:1"}]})
    assert left(http, topic) == [2, 3, 4, 6]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"before_seq": -1},
        {"before_seq": "1"},
        {"match": ["tag", "Regex", "x"]},
        {"match": ["tag", "Glob", "x"]},
        {"match": ["tag", "Glob", "x*y"]},
        {"match": ["data", "Eq", "x"]},
        {"match": ["tag", "Eq"]},
        {"match": 5},
        {"match": "a", "before_sq": 3},
    ],
)
def test_bad_selections(http, topic, body):
    envelope(delete(http, topic, **body), 400, "invalid_request")
    assert left(http, topic) == [1, 2, 3, 4, 5]


def test_no_such_topic(http, name):
    envelope(delete(http, name, before_seq=1), 404, "topic_not_found")
