"""Every code has its status; what can be retried says when."""

import json

import pytest

from tests.gateway.harness import serving
from topics import errors
from topics.errors import TopicsError
from topics.gateway.messages import Refusal
from topics.gateway.statuses import STATUS, error_response
from topics.rpc import BodyTooLarge, DeadlineExceeded, PeerLost, SendQueueFull, TooManyCalls


@pytest.mark.parametrize("code", sorted(errors.CODES))
def test_every_code_has_a_status(code):
    assert 400 <= STATUS[code] <= 599
    response = error_response(TopicsError(code, "message"))
    assert json.loads(response.body + b"}") == {"error": {"code": code, "message": "message"}}


@pytest.mark.parametrize(
    ("error", "status", "retry_after"),
    [
        (TopicsError(errors.THROTTLED, "slow", {"retry_after_ms": 2500}), 429, b"3"),
        (TopicsError(errors.THROTTLED, "cap", {"limit": "max_topics", "max": 1}), 429, b"1"),
        (TopicsError(errors.NOT_READY, "wait", {"retry_after_ms": 1}), 503, b"1"),
        (TopicsError(errors.SHUTTING_DOWN, "bye"), 503, b"1"),
        (TopicsError(errors.STORAGE_FULL, "full"), 507, b"1"),
        (PeerLost("gone"), 503, b"1"),
        (DeadlineExceeded("late"), 503, b"1"),
        (TooManyCalls("many"), 429, b"1"),
        (SendQueueFull("full"), 429, b"1"),
        (BodyTooLarge("large"), 413, None),
        (TopicsError(errors.TOPIC_FULL, "full"), 422, None),
        (Refusal(431, "head"), 431, None),
    ],
)
@pytest.mark.parametrize("path", ["/v0/topics/a", "/v0/topics/a/delete"])
async def test_refusals_of_a_shard(error, status, retry_after, path):
    async def refuse(*_):
        raise error

    async with serving() as bench, bench.client() as client:
        bench.shards.behave = refuse
        answer = await client.request("POST", path, b"{}")
        assert (answer.status, answer.headers.get(b"retry-after")) == (status, retry_after)
        assert not answer.closes
        shown = json.loads(answer.body)["error"]
        assert (shown["code"], shown["message"], shown.get("detail", {})) == (error.code, error.message, error.detail)


@pytest.mark.parametrize("path", ["/v0/topics/a", "/v0/topics/a/delete"])
async def test_a_bug_is_a_500_that_tells_nothing(path, caplog):
    async def fail(*_):
        raise RuntimeError("private")

    async with serving() as bench, bench.client() as client:
        bench.shards.behave = fail
        answer = await client.request("POST", path, b"{}")
        assert answer.status == 500
        assert json.loads(answer.body)["error"]["code"] == "internal"
        assert b"private" not in answer.body
        assert "private" in caplog.text
