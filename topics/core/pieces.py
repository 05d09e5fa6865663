"""A large append body, decoded a piece at a time: the decoder holds the interpreter while it works, and a shard's
loop wants it every millisecond.

The body is cut between two records about every PIECE_BYTES. Where records end is guessed, and the decoder itself tells
whether the guess was right: JSON is read from left to right, so if the text from one cut to the next is a list of
records on its own, the second cut lies between two records of the whole. Anything unusual is left alone, and so is
anything wrong: then the body is decoded in one go, which words the refusal.
"""

import codecs
import re
from collections.abc import Callable
from typing import TypeVar

import msgspec

from topics import limits

GUESSES_MAX = 8  # for one cut
_HEAD_MAX = 4096
_REACH = 2 * limits.MIB  # within which a record must end
_HEAD = re.compile(rb'\s*\{\s*(?:"[^"\\]*"\s*:\s*(?:"[^"\\]*"|true|false|null)\s*,\s*)*"records"\s*:\s*\[')
_CUT = re.compile(rb'\}\s*,(?=\s*\{\s*"(?:data|tag|node|meta|dedup_key)"\s*:)')

Record = TypeVar("Record")
Rest = TypeVar("Rest")


def is_utf8(body: bytes) -> bool:
    decode = codecs.getincrementaldecoder("utf-8")().decode
    try:
        for at in range(0, len(body), limits.PIECE_BYTES):
            decode(body[at : at + limits.PIECE_BYTES])
        decode(b"", True)
    except UnicodeDecodeError:
        return False
    return True


def decode_pieces(
    body: bytes, decode_records: Callable[[bytes], list[Record]], decode_rest: Callable[[bytes], Rest]
) -> tuple[list[Record], Rest] | None:
    """The records of all pieces but the last, and the body as it is without them; None if it has to go in one go."""
    head = _HEAD.match(body, 0, _HEAD_MAX)
    if head is None or _holds(body, b'"records"', head.end()):  # a second list would take the place of the first
        return None
    records: list[Record] = []
    at = head.end()
    try:
        while len(body) - at > 2 * limits.PIECE_BYTES:
            found, at = _decode_piece(body, at, decode_records)
            records += found
        return records, decode_rest(b"".join((body[: head.end()], body[at:])))
    except (msgspec.DecodeError, RecursionError):
        return None


def _decode_piece(body: bytes, at: int, decode_records: Callable[[bytes], list[Record]]) -> tuple[list[Record], int]:
    """The records from `at` to a cut, and where the next one begins. DecodeError if there is no cut."""
    guess = at + limits.PIECE_BYTES
    for _ in range(GUESSES_MAX):
        found = _CUT.search(body, guess, guess + _REACH)
        if found is None:
            break
        try:
            return decode_records(b"".join((b"[", body[at : found.start() + 1], b"]"))), found.end()
        except msgspec.DecodeError:
            guess = found.end()
    raise msgspec.DecodeError("no end of a record found")


def _holds(body: bytes, text: bytes, at: int) -> bool:
    """Whether the text stands anywhere from `at` on."""
    spans = range(at, len(body), limits.PIECE_BYTES)
    return any(body.find(text, start, start + limits.PIECE_BYTES + len(text)) >= 0 for start in spans)
