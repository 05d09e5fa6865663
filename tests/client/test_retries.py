"""When a request is sent again, and when not."""

import json
from collections.abc import Callable

import httpx
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from topics.client import ApiError, AsyncClient, Client, Retries, Unreachable
from topics.client.retries import NEVER
from topics.errors import TopicsError

QUICK = Retries(first_s=0.001, longest_s=0.002, total_s=5.0)
OK = httpx.Response(200, json={"topics": []})
LATER = httpx.Response(503, headers={"retry-after": "3600"}, json={"error": {"code": "not_ready"}})


def answering(*answers: httpx.Response | Exception) -> tuple[Callable[[httpx.Request], httpx.Response], list]:
    """A transport that gives these answers, then the last one for ever."""
    left, seen = list(answers), []

    def handle(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    return handle, seen


def client(handle: Callable, retries: Retries = QUICK) -> Client:
    http = httpx.Client(base_url="http://test", transport=httpx.MockTransport(handle))
    return Client(http=http, retries=retries)


@given(st.integers(1, 100), st.floats(0, 1), st.floats(0, 20))
def test_pauses_grow_are_bounded_and_respect_the_server(attempt, chance, retry_after):
    retries = Retries(0.1, 5.0, 60.0)
    pause = retries.pause(attempt, 0.0, retry_after, lambda: chance)
    assert pause is not None
    assert max(retry_after, 0.05) <= pause <= max(retry_after, 5.0)
    assert retries.pause(attempt, 60.0, retry_after, lambda: chance) is None


@pytest.mark.parametrize(
    "trouble", [httpx.Response(503), httpx.Response(429), httpx.ConnectError("no"), httpx.ReadError("cut")]
)
def test_what_passes_is_tried_again(trouble):
    handle, seen = answering(trouble, trouble, OK)
    assert client(handle).state("t") == {"topics": []}
    assert len(seen) == 3


@pytest.mark.parametrize("status", [503, 429])
def test_a_redrive_is_sent_once(status):
    """One that was refused may have begun, and another would move as many more."""
    handle, seen = answering(httpx.Response(status, json={"error": {"code": "not_now"}}))
    with pytest.raises(ApiError):
        client(handle).redrive("dead", "jobs", limit=5)
    assert len(seen) == 1


async def test_a_redrive_is_sent_once_with_trio():
    handle, seen = answering(httpx.ReadError("cut"))
    http = httpx.AsyncClient(base_url="http://test", transport=httpx.MockTransport(handle))
    with pytest.raises(Unreachable):
        await AsyncClient(http=http, retries=QUICK).redrive("dead", "jobs")
    assert len(seen) == 1


def test_the_servers_wish_is_the_least_wait():
    handle, seen = answering(LATER)
    with pytest.raises(ApiError) as caught:
        client(handle).state("t")
    assert (caught.value.code, len(seen)) == ("not_ready", 1)


@pytest.mark.parametrize("status", [400, 404, 409, 422, 500])
def test_a_refusal_is_told_at_once(status):
    error = {"code": "some_code", "message": "why", "detail": {"a": 1}}
    handle, seen = answering(httpx.Response(status, json={"error": error}))
    with pytest.raises(ApiError) as caught:
        client(handle).append("t", [{"data": 1}])
    assert (caught.value.status, caught.value.code, caught.value.detail) == (status, "some_code", {"a": 1})
    assert len(seen) == 1


def test_it_gives_up_in_the_end():
    handle, _ = answering(httpx.ConnectError("no"))
    with pytest.raises(Unreachable):
        client(handle, NEVER).state("t")


def test_an_append_keeps_its_key_over_all_attempts():
    handle, seen = answering(httpx.ReadError("cut"), OK)
    client(handle).append("t", [{"data": 1}])
    first, second = (json.loads(request.content)["idempotency_key"] for request in seen)
    assert first == second
    client(handle).append("t", [{"data": 1}], idempotency_key="mine")
    assert json.loads(seen[-1].content)["idempotency_key"] == "mine"


@pytest.mark.parametrize(
    "text", ["<html>", '{"error":"no such host"}', '{"error":null}', "[]", '{"error":{"code":"x","detail":null}}']
)
def test_what_is_not_of_topics_is_an_error_too(text):
    handle, _ = answering(httpx.Response(404, text=text))
    with pytest.raises(ApiError) as caught:
        client(handle).state("t")
    assert (caught.value.status, caught.value.detail) == (404, {})


def test_a_refusal_is_one_of_a_database_too():
    handle, _ = answering(httpx.Response(404, json={"error": {"code": "topic_not_found", "message": "no"}}))
    with pytest.raises(TopicsError) as caught:
        client(handle).state("t")
    assert (caught.value.code, caught.value.message) == ("topic_not_found", "no")


async def test_the_client_for_trio_does_the_same():
    handle, seen = answering(httpx.ConnectError("no"), httpx.Response(503), httpx.Response(200, json={"topics": []}))
    http = httpx.AsyncClient(base_url="http://test", transport=httpx.MockTransport(handle))
    async with AsyncClient(http=http, retries=QUICK) as topics:
        with trio.fail_after(60):
            assert await topics.state("t") == {"topics": []}
    assert len(seen) == 3


def test_names_are_quoted_and_keys_sent():
    handle, seen = answering(OK)
    client(handle).state("a b/c")
    assert seen[0].url.raw_path == b"/v0/topics/a%20b%2Fc"
    with Client("http://test", "secret") as topics:
        assert topics._http.headers["authorization"] == "Bearer secret"
