"""Records on their way from lines to the server and back. Their `data` stays the bytes it is."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec

from topics.cli.output import line
from topics.limits import MIB

BATCH_BYTES = 4 * MIB


class Page(msgspec.Struct):
    """An answer to a diff, its records unparsed."""

    records: list[msgspec.Raw]
    next_from_seq: int
    caught_up: bool
    tombstone: dict[str, Any] | None = None


class Batch(NamedTuple):
    """The records of one request. `number` counts from 1, `read` are the bytes of input they came from."""

    texts: list[bytes]
    number: int
    read: int

    def body(self, fields: dict[str, Any]) -> bytes:
        if "idempotency_key" in fields and self.number > 1:
            fields = fields | {"idempotency_key": f"{fields['idempotency_key']}-{self.number}"}
        rest = msgspec.json.encode(fields)[1:]
        return b'{"records":[' + b",".join(self.texts) + (b"]," if fields else b"]") + rest


class Renderer(NamedTuple):
    """Makes the JSON of a record from a line."""

    text: bool
    whole: bool
    fields: dict[str, Any]  # that every record has

    def record(self, value: bytes, where: str) -> bytes:
        if self.text:
            value = msgspec.json.encode(value.decode(errors="replace"))
        else:
            _check(value, where, dict[str, msgspec.Raw] if self.whole else msgspec.Raw)
        if self.whole:
            return value
        return b'{"data":' + value + (b"," if self.fields else b"") + msgspec.json.encode(self.fields)[1:]


def _check(value: bytes, where: str, kind: Any) -> None:
    """It is joined with others as it is, so it must be one value."""
    try:
        value.decode()
        msgspec.json.decode(value, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        wanted = "JSON value (--text takes plain text)" if kind is msgspec.Raw else "JSON object"
        raise click.UsageError(f"{where} is no {wanted}: {error}") from None


@contextmanager
def open_lines(data: Sequence[str], file: Path | None) -> Iterator[tuple[Iterator[tuple[bytes, str]], int | None]]:
    """(value, where it stands) one after another, and the size of all if it is known."""
    values = [(text.encode(errors="surrogateescape"), f"DATA {n}") for n, text in enumerate(data, 1)]
    if file is None:
        yield iter(values), sum(len(value) for value, _ in values)
        return
    if str(file) == "-":
        yield _numbered(values, sys.stdin.buffer), None
        return
    try:
        with file.open("rb") as opened:
            yield _numbered(values, opened), file.stat().st_size
    except OSError as error:
        raise click.UsageError(f"{file} cannot be read: {error.strerror}") from None


def _numbered(values: list[tuple[bytes, str]], lines: Iterable[bytes]) -> Iterator[tuple[bytes, str]]:
    yield from values
    for n, text in enumerate(lines, 1):
        if text.strip():
            yield text.rstrip(b"\r\n"), f"line {n}"


def batches(render: Renderer, lines: Iterator[tuple[bytes, str]], most: int) -> Iterator[Batch]:
    texts: list[bytes] = []
    number, room, read = 1, BATCH_BYTES, 0
    for value, where in lines:
        text = render.record(value, where)
        if texts and (len(texts) >= most or len(text) > room):
            yield Batch(texts, number, read)
            texts, number, room, read = [], number + 1, BATCH_BYTES, 0
        texts.append(text)
        room -= len(text)
        read += len(value) + 1
    if texts:
        yield Batch(texts, number, read)


def outcome(answer: dict[str, Any]) -> str:
    """What an append did, in words."""
    duplicates = answer.get("duplicates", [])
    parts = []
    if answer["count"]:
        again = " (were there already)" if answer["deduped"] else ""
        parts.append(f"{answer['count']} records, seqs {answer['first_seq']} to {answer['last_seq']}{again}")
    if duplicates:
        seqs = ", ".join(str(duplicate["seq"]) for duplicate in duplicates[:8])
        more = ", …" if len(duplicates) > 8 else ""
        parts.append(f"{len(duplicates)} not appended: duplicates of seq {seqs}{more}")
    return "; ".join(parts) or "nothing was appended"


def print_page(page: Page) -> None:
    if page.tombstone is not None:
        lost = page.tombstone
        click.echo(f"lost: seqs {lost['gap_from']} to {lost['gap_to']} ({lost['reason']})", err=True)
    for record in page.records:
        line(bytes(record))
