"""The server as the connector sees it: states, pages of records as bytes, appends. Public HTTP alone.

What is put off (429, 503, a lost connection) is tried again with growing, uneven pauses for `retrySeconds`.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn, Self

import httpx

from spark_integration.options import Selection, Server
from spark_integration.planning import Bounds
from topics.client import ApiError, Client, Retries, Unreachable
from topics.client.calls import Request, headers_of, read
from topics.paths import topic_path

TIMEOUT_S = 60.0


class Refused(Exception):
    """The server said no, or nothing; the message is for the person who wrote the query."""


class NoTopic(Refused):
    """There is no topic of this name."""


def _http(server: Server) -> httpx.Client:
    """Bodies are not packed: on a cluster's own network that costs more than it saves. Reading the certificates that
    HTTPS needs takes as long as a page of records, so plain HTTP does without."""
    headers = headers_of(server.token) | {"accept-encoding": "gzip" if server.gzip else "identity"}
    return httpx.Client(base_url=server.url, headers=headers, verify=server.url.startswith("https:"))


class Topics:
    def __init__(self, server: Server) -> None:
        self._server = server
        retries = Retries(total_s=server.retry_s, longest_s=5.0)
        self._client = Client(retries=retries, timeout_s=TIMEOUT_S, http=_http(server))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    # --- topics ---------------------------------------------------------------------------------------------------

    def bounds(self, selection: Selection, *, strict: bool = True) -> dict[str, Bounds]:
        """Every selected topic. A pattern may match none; a name that does not exist is an error if `strict`."""
        if selection.pattern is None:
            look = self.bounds_of if strict else self._bounds_if_there
            return {name: bounds for name in selection.names if (bounds := look(name)) is not None}
        pattern = re.compile(selection.pattern)
        with self._explained(selection.pattern):
            found = [fields for fields in self._client.topics() if pattern.fullmatch(fields["topic"])]
        return {fields["topic"]: Bounds(fields["earliest_seq"], fields["head_seq"]) for fields in found}

    def bounds_of(self, topic: str) -> Bounds:
        state = self.state(topic)
        return Bounds(state["earliest_seq"], state["head_seq"], state["created_ts"])

    def _bounds_if_there(self, topic: str) -> Bounds | None:
        try:
            return self.bounds_of(topic)
        except NoTopic:
            return None

    def created(self, topic: str) -> int | None:
        """When it was made; None if it does not exist any more, or if nobody knows."""
        bounds = self._bounds_if_there(topic)
        return None if bounds is None else bounds.created

    def state(self, topic: str) -> dict[str, Any]:
        with self._explained(topic):
            return self._client.send(Request("GET", topic_path(topic), query={"touch": "false"}))

    def routers_from(self, topic: str) -> list[dict[str, Any]]:
        """Those that this key may see, with their settings."""
        with self._explained(topic):
            names = [found["router"] for found in self._client.routers() if found["source"] == topic]
            return [self._client.router(name) for name in names]

    def first_at(self, topic: str, bounds: Bounds, ts: int) -> int:
        """The seq after which every record is of `ts` or later, within what the topic has."""
        with self._explained(topic):
            found = int(self._client.seek(topic, ts)["from_seq"])
        return min(max(found, bounds.earliest - 1), bounds.head)

    # --- records --------------------------------------------------------------------------------------------------

    def page(self, topic: str, query: Mapping[str, Any]) -> bytes:
        """The body of a diff."""
        return self._bytes(Request("POST", topic_path(topic, "diff"), query), topic)

    def append(self, topic: str, body: bytes) -> bytes:
        return self._bytes(Request("POST", topic_path(topic), body, {"return_seqs": "false"}), topic)

    def delete_before(self, topic: str, seq: int) -> int:
        with self._explained(topic):
            return int(self._client.delete(topic, before_seq=seq)["deleted"])

    def redrive(self, topic: str, to: str, tag_prefix: str | None, limit: int) -> int:
        """Dead letters that are in `to` now, or on their way there."""
        match = None if tag_prefix is None else ["tag", "Glob", f"{tag_prefix}*"]
        with self._explained(topic):
            try:
                answer = self._client.redrive(topic, to, match=match, limit=limit)
            except ApiError as error:
                self._explain(error, to if error.code in ("topic_not_found", "not_a_queue") else topic)
        return int(answer["moved"]) + int(answer["pending"])

    def _bytes(self, request: Request, topic: str) -> bytes:
        with self._explained(topic):
            answer = self._client.exchange(request)
            if not answer.is_success:
                read(answer)
            return answer.content

    @contextmanager
    def _explained(self, topic: str) -> Iterator[None]:
        try:
            yield
        except ApiError as error:
            self._explain(error, topic)
        except Unreachable as error:
            seconds = f"{self._server.retry_s:g} s"
            raise Refused(f"{self._server.url} cannot be reached, tried for {seconds}: {error}") from error

    def _explain(self, error: ApiError, topic: str) -> NoReturn:
        where = self._server.url
        if error.code == "topic_not_found":
            raise NoTopic(f"topic {topic!r} does not exist at {where}") from error
        if error.status == 401:
            said = (
                "the option token is missing" if self._server.token is None else "its option token is not known there"
            )
            raise Refused(f"{where} wants a key: {said}") from error
        if error.status == 403:
            raise Refused(f"the key given as token may not do this with {topic!r}: {error.message}") from error
        raise Refused(f"{where} refused {topic!r}: {error}") from error
