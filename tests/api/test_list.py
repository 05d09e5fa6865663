"""The list of topics, over both shards (API §0.7, §1.3)."""

import base64

import pytest

from tests.api.instance import envelope

NAMES = [f"list:{n:03d}" for n in range(25)]


@pytest.fixture(scope="module", autouse=True)
def topics(http):
    for name in reversed(NAMES):
        assert http.put(f"/v0/topics/{name}", json={"durable": True}).status_code == 201


def names(body):
    return [entry["topic"] for entry in body["topics"]]


def test_one_page_in_name_order_without_a_cursor(http):
    body = http.get("/v0/topics", params={"prefix": "list:"}).json()
    assert names(body) == NAMES
    assert "next_cursor" not in body
    assert body["performance"]["server_total_ms"] > 0


def test_entries(http):
    (entry,) = http.get("/v0/topics", params={"prefix": "list:007"}).json()["topics"]
    assert set(entry) == {"topic", "head_seq", "earliest_seq", "count", "bytes", "durable", "effective_priority"}
    assert entry["durable"] is True


@pytest.mark.parametrize("size", [1, 3, 12, 24, 25])
def test_pages(http, size):
    seen, cursor, pages = [], None, 0
    while True:
        params = {"prefix": "list:", "page_size": size} | ({"cursor": cursor} if cursor else {})
        body = http.get("/v0/topics", params=params).json()
        assert len(body["topics"]) <= size
        seen += names(body)
        pages += 1
        cursor = body.get("next_cursor")
        if cursor is None:
            break
    assert seen == NAMES
    assert pages == -(-len(NAMES) // size)


def test_page_size_is_clamped(http):
    for size in ("5000", "9" * 30, "0005000"):
        assert len(http.get("/v0/topics", params={"page_size": size, "prefix": "list:"}).json()["topics"]) == len(NAMES)


@pytest.mark.parametrize("size", ["0", "-1", "x", "1.5", " ", "²"])
def test_bad_page_size(http, size):
    envelope(http.get("/v0/topics", params={"page_size": size}), 400, "invalid_request")


@pytest.mark.parametrize(
    "cursor",
    [" ", "!!!", "abc", base64.b64encode(b"[]").decode(), base64.b64encode(b'{"after":1}').decode(),
     base64.b64encode(b'{"after":"a","x":1}').decode(), base64.b64encode(b"\xff").decode()],
)  # fmt: skip
def test_bad_cursor(http, cursor):
    envelope(http.get("/v0/topics", params={"cursor": cursor}), 400, "invalid_request")


def test_a_cursor_survives_the_removal_of_its_topic(http):
    http.put("/v0/topics/gone:1")
    http.put("/v0/topics/gone:2")
    cursor = http.get("/v0/topics", params={"prefix": "gone:", "page_size": 1}).json()["next_cursor"]
    http.delete("/v0/topics/gone:1")
    assert names(http.get("/v0/topics", params={"prefix": "gone:", "cursor": cursor}).json()) == ["gone:2"]


def test_nothing_matches(http):
    body = http.get("/v0/topics", params={"prefix": "no such prefix é"}).json()
    assert body["topics"] == []
    assert "next_cursor" not in body


def test_touch_is_off_unless_asked(http, name):
    http.put(f"/v0/topics/{name}")
    http.get("/v0/topics", params={"prefix": name})
    assert http.get(f"/v0/topics/{name}?touch=false").json()["last_read_ts"] is None
    http.get("/v0/topics", params={"prefix": name, "touch": "true"})
    assert http.get(f"/v0/topics/{name}?touch=false").json()["last_read_ts"] is not None


def test_bad_query_encoding(http):
    envelope(http.get("/v0/topics?prefix=%ff"), 400, "invalid_request")
