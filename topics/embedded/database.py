"""An open data directory, as methods that wait for their answers. From any thread; see `Api` for the calls.

A request goes to the loop as the bytes that HTTP would carry, and what comes back is decoded here, in the caller's
thread. Refusals are `TopicsError` with the codes of the API.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self
from urllib.parse import urlencode

import msgspec

from topics import errors
from topics.client import calls
from topics.client.api import Api
from topics.client.calls import Record, Request
from topics.client.retries import Retries
from topics.embedded.instance import Instance
from topics.embedded.loop import Loop, failed
from topics.errors import TopicsError

_encode = msgspec.json.Encoder().encode
_decode_fast = msgspec.json.Decoder().decode
_whole = msgspec.json.Decoder(msgspec.Raw).decode
_split = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_split_records = msgspec.json.Decoder(list[dict[str, msgspec.Raw]]).decode


class Database(Api):
    """Made by `topics.open`. A context manager: leaving it closes the database."""

    def __init__(self, instance: Instance, loop: Loop, give_back: Callable[[], None]) -> None:
        self._instance = instance
        self._loop = loop
        self._give_back = give_back
        self._pid = os.getpid()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._end()
        if kind is None:
            self._raise_failure()

    def close(self) -> None:
        """Let calls under way finish, store everything, give the directory back. Raises if the storage has failed."""
        self._end()
        self._raise_failure()

    # --- records --------------------------------------------------------------------------------------------------

    def append(self, topic: str, records: Sequence[Record], **fields: Any) -> dict[str, Any]:
        """As in `Api`; `data` may also be `bytes`, which are JSON already and are stored as they are. A writer that is
        faster than the disk waits, unless it says `disable_backpressure=False`."""
        fields.setdefault("disable_backpressure", True)
        return super().append(topic, [_as_json(record) for record in records], **fields)  # type: ignore[misc]

    def diff(self, topic: str, from_seq: int = 0, *, raw: bool = False, **fields: Any) -> dict[str, Any]:
        """As in `Api`. With `raw`, also of `read` and `follow`, `data` is the bytes that were appended."""
        if not raw:
            return super().diff(topic, from_seq, **fields)
        answer = self._fetch(calls.diff(topic, from_seq, fields))
        page = _split(answer)
        records = [_keep_data(record) for record in _split_records(page.pop("records"))]
        return {"records": records, **{name: _decode(text) for name, text in page.items()}}

    def follow(self, topic: str, from_seq: int = 0, **fields: Any) -> Iterator[dict[str, Any]]:
        """Every record after a cursor, and then every new one as it comes. Ends when the database is closed."""
        try:
            yield from super().follow(topic, from_seq, **fields)
        except TopicsError as error:
            if error.code != errors.SHUTTING_DOWN:
                raise

    # --- the directory --------------------------------------------------------------------------------------------

    def compact(self) -> dict[str, int]:
        """Give back now the files that nobody needs any more, which else happens by itself within about a minute.
        What that was: `segments_removed`, `log_files_removed`, `bytes_freed`, and what is left: `bytes_used`."""
        self._check_process()
        return self._loop.call(self._instance.compact)

    # --- requests -------------------------------------------------------------------------------------------------

    def send(self, request: Request, retries: Retries | None = None) -> dict[str, Any]:
        """One request. `retries` are for those who may lose one on the way. Raises TopicsError."""
        answer: dict[str, Any] = _decode(self._fetch(request))
        return answer

    def _fetch(self, request: Request) -> bytes:
        body = request.body if isinstance(request.body, bytes) else b"" if request.body is None else _dump(request.body)
        status, answer = self.exchange(request.method, request.path, request.query, body)
        if status >= 400:
            error = _decode(answer)["error"]
            raise TopicsError(error["code"], error["message"], error.get("detail"))
        return answer

    def exchange(
        self, method: str, path: str, query: Mapping[str, Any] | None = None, body: bytes = b""
    ) -> tuple[int, bytes]:
        """Any request of the API but streams: the status and the body of its answer."""
        self._check_process()
        args = path.encode(), urlencode(query or {}).encode(), body
        response = self._loop.call(lambda: self._instance.answer(method, *args))
        return response.status, response.body + response.tail

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise TopicsError(errors.NOT_READY, "a forked process has no database: open it where it is used")

    def _end(self) -> None:
        if os.getpid() == self._pid:
            self._loop.stop()
            self._give_back()

    def _raise_failure(self) -> None:
        if self._loop.failure is not None:
            raise failed(self._loop.failure)


def _decode(text: bytes | msgspec.Raw) -> Any:
    try:
        return _decode_fast(text)
    except msgspec.ValidationError:  # a number out of bounds
        return calls.parse(bytes(text))


def _keep_data(record: Mapping[str, msgspec.Raw]) -> dict[str, Any]:
    return {name: bytes(text) if name == "data" else _decode(text) for name, text in record.items()}


def _as_json(record: Record) -> msgspec.Raw:
    """A record as a client would send it; `data` may be bytes."""
    if not isinstance(record, Mapping):
        return msgspec.Raw(_strict(record))  # as below
    rest = _dump({name: value for name, value in record.items() if name != "data"})
    if "data" not in record:
        return msgspec.Raw(rest)  # to be refused by whoever refuses it everywhere
    data = record["data"]
    text = _whole_value(data) if isinstance(data, bytes) else _strict(data)
    return msgspec.Raw(b'{"data":%b%b%b' % (text, b"," if len(rest) > 2 else b"", rest[1:]))


def _whole_value(data: bytes) -> msgspec.Raw:
    """Bytes must be one JSON value and no more, or they would end the record they are in."""
    try:
        return _whole(data)
    except RecursionError:
        raise _too_deep() from None
    except msgspec.DecodeError as error:
        raise errors.invalid(f"data is not JSON: {error}", field="data") from None


def _dump(body: Mapping[str, Any]) -> bytes:
    """The values of a body as JSON; records are JSON already."""
    return _encode({name: value if name == "records" else msgspec.Raw(_strict(value)) for name, value in body.items()})


def _strict(value: Any) -> bytes:
    """What JSON has, and nothing that would become something else, as over HTTP: no NaN, no bytes, no sets."""
    try:
        return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()
    except RecursionError:
        raise _too_deep() from None
    except (TypeError, ValueError) as error:
        raise errors.invalid(f"this is not JSON: {error}") from None


def _too_deep() -> TopicsError:
    return errors.invalid("the body is nested too deeply")  # as whoever reads one over HTTP says
