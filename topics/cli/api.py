"""Calls of the HTTP API, for commands: one request, its answer's bytes, or the Failure that it is.

Commands print what the server sent, byte for byte, so they do not use topics.client, which decodes it.
"""

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
import msgspec

from topics.cli.config import target
from topics.cli.failures import UNREACHABLE, Failure, of_answer
from topics.cli.output import json_option

if TYPE_CHECKING:
    import httpx

TIMEOUT_S = 60.0  # longer than any wait the server accepts
CONNECT_S = 5.0
COMPLETION_S = 1.0
JSON_TYPE = "application/json"


class Refusal(msgspec.Struct):
    error: dict[str, Any]


class Api:
    def __init__(self, url: str, key: str | None, timeout_s: float = TIMEOUT_S) -> None:
        import httpx

        self.url = url
        headers = {"accept": JSON_TYPE} | ({"authorization": f"Bearer {key}"} if key else {})
        timeout = httpx.Timeout(timeout_s, connect=min(CONNECT_S, timeout_s))
        self._client = httpx.Client(base_url=url, headers=headers, timeout=timeout)

    def close(self) -> None:
        self._client.close()

    def call(self, method: str, path: str, body: Any = None, query: Mapping[str, Any] | None = None) -> bytes:
        """The answer's body. `body` is JSON as bytes, or something to encode."""
        content = body if isinstance(body, bytes | None) else msgspec.json.encode(body)
        headers = {"content-type": JSON_TYPE} if content is not None else {}
        with self._reaching():
            response = self._client.request(method, path, content=content, params=_query(query), headers=headers)
        if not response.is_success:
            raise failure_of(response)
        return response.content

    def json(self, method: str, path: str, body: Any = None, query: Mapping[str, Any] | None = None) -> Any:
        return msgspec.json.decode(self.call(method, path, body, query))

    def pages(self, path: str, key: str, query: Mapping[str, Any], most: int | None) -> Iterator[dict[str, Any]]:
        """The rows of a list, page after page, at most `most`."""
        left, cursor = most, None
        while left is None or left > 0:
            page_size = 1000 if left is None else min(1000, left)
            page = self.json("GET", path, query={**query, "page_size": page_size, "cursor": cursor})
            yield from page[key]
            cursor = page.get("next_cursor")
            if cursor is None:
                return
            left = None if left is None else left - len(page[key])

    @contextmanager
    def stream(self, path: str, headers: Mapping[str, str], silence_s: float) -> Iterator["httpx.Response"]:
        """An event stream. Raises Failure if it is refused, or unreachable then or later."""
        import httpx

        timeout = httpx.Timeout(silence_s, connect=CONNECT_S)
        accept = {"accept": "text/event-stream", **headers}
        with self._reaching(), self._client.stream("GET", path, headers=accept, timeout=timeout) as response:
            if not response.is_success:
                response.read()
                raise failure_of(response)
            yield response

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        import httpx

        try:
            yield
        except httpx.TransportError as error:
            reason = str(error) or type(error).__name__
            raise Failure(UNREACHABLE, f"no answer from {self.url}: {reason}", "unreachable") from None
        except httpx.InvalidURL as error:
            raise Failure(UNREACHABLE, f"{self.url} is no URL of a server: {error}", "unreachable") from None


def failure_of(response: "httpx.Response") -> Failure:
    try:
        error = msgspec.json.decode(response.content, type=Refusal).error
    except msgspec.DecodeError:
        error = {"message": f"HTTP {response.status_code} {response.reason_phrase} from something that is not topics"}
    return of_answer(response.status_code, error, response.headers.get("x-request-id"))


def _query(query: Mapping[str, Any] | None) -> dict[str, str] | None:
    if not query:
        return None
    texts = {True: "true", False: "false"}
    return {
        name: texts[value] if isinstance(value, bool) else str(value)
        for name, value in query.items()
        if value is not None
    }


def calls_api(function: Callable[..., Any]) -> Callable[..., Any]:
    """A command that talks to the server: it gets `api` and `as_json`, and the options that say where and how."""

    @click.option("--url", metavar="URL", help="The server. [TOPICS_URL; default http://127.0.0.1:4000]")
    @click.option(
        "--key-file", metavar="FILE", help="File with the API key, - for stdin. [TOPICS_KEY_FILE, TOPICS_KEY]"
    )
    @click.option("--key", metavar="KEY", help="The API key; better in a file or TOPICS_KEY, where nobody sees it.")
    @click.option(
        "--timeout", type=click.FloatRange(0.01), default=TIMEOUT_S, help="Seconds to wait for an answer. [60]"
    )
    @json_option
    @functools.wraps(function)
    def command(*args: Any, url: str, key_file: str, key: str, timeout: float, as_json: bool, **kwargs: Any) -> Any:
        where = target(url, key, key_file)
        api = Api(where.url, where.key, timeout)
        try:
            return function(*args, api=api, as_json=as_json, **kwargs)
        finally:
            api.close()

    return command


def complete_topic(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Names of topics, for the shell. Says nothing if it cannot find out quickly."""
    try:
        where = target(ctx.params.get("url"), None, ctx.params.get("key_file"))
        api = Api(where.url, where.key, COMPLETION_S)
        return [row["topic"] for row in api.pages("/v0/topics", "topics", {"prefix": incomplete}, 100)]
    except Exception:
        return []  # a traceback in the middle of a command line helps nobody
