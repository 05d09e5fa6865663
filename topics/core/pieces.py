"""A large append body, decoded a piece at a time: the decoder holds the interpreter while it works, and a shard's
loop wants it every millisecond.

The body is cut between two records about every PIECE_BYTES. Where records end is guessed first, and the decoder itself
tells whether the guess was right: JSON is read from left to right, so if the text from one cut to the next is a list of
records on its own, the second cut lies between two records of the whole. Where no guess is right the text is walked
through, string by string and bracket by bracket (json_walk.py): that is slow, but others get their turn.

What stands beside the records is decoded last. A refusal is in the words of the decoder, with the index and the
position in the whole body where that can be told; of several faults it may name another than the first.
"""

import codecs
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, NoReturn, TypeVar

import msgspec

from topics import errors, limits
from topics.core.json_walk import (
    QUOTE,
    STEP_BYTES,
    Malformed,
    TooLong,
    behind,
    byte_at,
    end_of_string,
    end_of_value,
    skip_space,
)
from topics.errors import TopicsError, invalid

GUESSES_MAX = 8  # for one cut
EXPLAINED_BYTES = 2 * limits.MIB  # of text that cannot be walked through, shown to the decoder for its words
_CUT = re.compile(
    rb"\}[ \t\n\r]*,(?=[ \t\n\r]*\{[ \t\n\r]*"
    rb'"(?:data|tag|node|meta|dedup_key|priority|delay_ms|not_before|ttl_ms)"[ \t\n\r]*:)'
)
_INDEX = re.compile(r"- at `\$\[(\d+)\]")
_BYTE = re.compile(r"\(byte (\d+)\)$")
_BEHIND_LIST = re.compile(r"trailing characters \(byte (\d+)\)$")

NO_RECORDS = b'"records":[]'

Record = TypeVar("Record")
Rest = TypeVar("Rest")


def find_non_utf8(body: bytes) -> int | None:
    """The position of the first byte that is not UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    for at in range(0, len(body), limits.PIECE_BYTES):
        before = len(decoder.getstate()[0])
        try:
            decoder.decode(body[at : at + limits.PIECE_BYTES], at + limits.PIECE_BYTES >= len(body))
        except UnicodeDecodeError as error:
            return at - before + error.start
    return None


@dataclass(frozen=True, slots=True)
class Reader(Generic[Record, Rest]):
    """What is to be made of the pieces. `check_count` is told after each piece, and raises if there are too many."""

    records: Callable[[bytes], list[Record]]
    rest: Callable[[bytes], Rest]
    check_count: Callable[[int], None]
    record_bytes: int


def decode_pieces(body: bytes, reader: Reader[Record, Rest]) -> tuple[list[Record], Rest]:
    """The records, and the body without them. Raises msgspec.DecodeError, RecursionError, or TopicsError for what is
    far too large."""
    return _Pieces(body, reader).decode()


class _Pieces(Generic[Record, Rest]):
    def __init__(self, body: bytes, reader: Reader[Record, Rest]) -> None:
        self._body = body
        self._reader = reader
        self._records: list[Record] = []
        self._members: list[bytes] = []  # beside the list of records
        self._members_bytes = 0
        self._count = 0  # of all members
        self._text_max = 2 * reader.record_bytes + limits.REQUEST_BODY_BYTES  # of one record, with whatever it holds

    def decode(self) -> tuple[list[Record], Rest]:
        body = self._body
        at = skip_space(body, 0)
        if body[at : at + 1] != b"{":
            self._reader.rest(body[at : at + EXPLAINED_BYTES])  # raises
        try:
            end = skip_space(body, self._object(at + 1))
        except Malformed as error:
            raise _malformed(body, error.at) from None
        if end < len(body):
            raise msgspec.DecodeError(f"JSON is malformed: trailing characters (byte {end + 1})")
        return self._records, self._rest()

    def _object(self, at: int) -> int:
        """Take its members in; the position behind it."""
        body = self._body
        at = skip_space(body, at)
        if byte_at(body, at) == ord("}"):
            return at + 1
        while True:
            at = skip_space(body, self._member(at))
            if byte_at(body, at) == ord("}"):
                return at + 1
            at = skip_space(body, behind(body, at, b","))

    def _member(self, at: int) -> int:
        body = self._body
        if byte_at(body, at) != QUOTE:
            raise Malformed(at)
        self._count += 1
        if self._count > limits.APPEND_MEMBERS_MAX:
            raise invalid(f"the body has more than {limits.APPEND_MEMBERS_MAX} members")
        try:
            key_end = end_of_string(body, at, limits.REQUEST_BODY_BYTES)
            value = skip_space(body, behind(body, skip_space(body, key_end), b":"))
            is_list = byte_at(body, value) == ord("[") and _is_records(body[at:key_end])
            end = 0 if is_list else end_of_value(body, value, limits.REQUEST_BODY_BYTES)
        except TooLong:
            raise _too_much_beside() from None
        if is_list:
            if NO_RECORDS not in self._members:
                self._keep(NO_RECORDS)
                self._rest()  # what is wrong with the members before it is told first
            self._records = []  # of several lists the last one counts
            return self._list(value + 1)
        self._keep(body[at:end])
        return end

    def _keep(self, member: bytes) -> None:
        self._members_bytes += len(member)
        if self._members_bytes > limits.REQUEST_BODY_BYTES:
            raise _too_much_beside()
        self._members.append(member)

    def _rest(self) -> Rest:
        try:
            return self._reader.rest(b"{%b}" % b",".join(self._members))
        except msgspec.ValidationError:
            raise
        except msgspec.DecodeError as error:  # the position would be that in another text
            raise msgspec.DecodeError(_BYTE.sub("", str(error)).rstrip()) from None

    # --- the list of records --------------------------------------------------------------------------------------

    def _list(self, at: int) -> int:
        """Take its records in; the position behind it."""
        body = self._body
        at = skip_space(body, at)
        if byte_at(body, at) == ord("]"):
            return at + 1
        while True:
            found = self._guess(at) if len(body) - at > 2 * limits.PIECE_BYTES else self._guess_end(at)
            at, is_end = found if found is not None else self._walk(at)
            self._reader.check_count(len(self._records))
            if is_end:
                return at
            if byte_at(body, at) == ord("]"):
                raise msgspec.DecodeError(f"JSON is malformed: trailing comma in array (byte {at})")

    def _guess(self, at: int) -> tuple[int, bool] | None:
        """Take records from `at` on in, up to where one seems to begin, and is right to. At most two pieces' worth."""
        body = self._body
        guess = at + limits.PIECE_BYTES
        stop = guess + limits.PIECE_BYTES
        for _ in range(GUESSES_MAX):
            cut = _find_cut(body, guess, stop)
            if cut is None:
                return None
            end, begin = cut
            try:
                self._records += self._reader.records(b"[%b]" % body[at:end])
            except (msgspec.DecodeError, RecursionError):
                guess = begin
            else:
                return skip_space(body, begin), False
        return None

    def _guess_end(self, at: int) -> tuple[int, bool] | None:
        """Take the last records in: the decoder says where their list ends, by what it finds behind it."""
        try:
            self._reader.records(b"[" + self._body[at:])
        except (msgspec.DecodeError, RecursionError) as error:
            found = _BEHIND_LIST.search(str(error))
            if found is None:
                return None
            follows = at + int(found[1]) - 2  # it counts from 1, and the bracket that was put in front
            self._records += self._reader.records(b"[" + self._body[at:follows])
            return follows, True
        return None  # there is no end of the object behind the list

    def _walk(self, at: int) -> tuple[int, bool]:
        """Take records in one by one, until they are a piece."""
        body, begin, end, count = self._body, at, at, 0
        while True:
            try:
                value_end = end_of_value(body, at, self._text_max)
                mark = skip_space(body, value_end)
                is_end = byte_at(body, mark) == ord("]")
                follows = mark + 1 if is_end else skip_space(body, behind(body, mark, b","))
            except TooLong:
                raise self._too_long(len(self._records) + count) from None
            except Malformed:
                self._explain(begin, end, at)
            at, end, count = follows, value_end, count + 1
            if is_end or end - begin >= limits.PIECE_BYTES:
                self._take(b"[%b]" % body[begin:end], begin)
                return at, is_end

    def _too_long(self, index: int) -> TopicsError:
        """A record may have white space and members that nobody knows, but not without end."""
        most = self._reader.record_bytes
        message = f"records[{index}] has more than {self._text_max} bytes of text; data + meta may have {most}"
        return TopicsError(errors.RECORD_TOO_LARGE, message, {"index": index, "max": most})

    def _explain(self, begin: int, end: int, at: int) -> NoReturn:
        """There are records from `begin` to `end`, but what follows at `at` is none."""
        if end > begin:
            self._take(b"[%b]" % self._body[begin:end], begin)
        self._take(b"[" + self._body[at : at + EXPLAINED_BYTES], at)
        raise _malformed(self._body, at)

    def _take(self, text: bytes, begin: int) -> None:
        """Decode a list of records whose first one stands at `begin`; errors tell places in the whole body."""
        try:
            self._records += self._reader.records(text)
        except msgspec.ValidationError as error:
            first = len(self._records)
            message = _INDEX.sub(lambda found: f"- at `$.records[{first + int(found[1])}]", str(error))
            raise msgspec.ValidationError(message) from None
        except msgspec.DecodeError as error:
            message = _BYTE.sub(lambda found: f"(byte {begin - 1 + int(found[1])})", str(error))
            raise msgspec.DecodeError(message) from None


def _is_records(key: bytes) -> bool:
    if b"\\" not in key:
        return key == b'"records"'
    try:
        return bool(msgspec.json.decode(key) == "records")
    except msgspec.DecodeError:
        return False


def _find_cut(body: bytes, at: int, stop: int) -> tuple[int, int] | None:
    """(behind a record, behind the comma) of the next place that looks like the end of a record."""
    for low in range(at, stop, STEP_BYTES):
        found = _CUT.search(body, low, min(low + STEP_BYTES + 64, stop))
        if found is not None:
            return found.start() + 1, found.end()
    return None


def _too_much_beside() -> TopicsError:
    most = limits.REQUEST_BODY_BYTES
    message = f"what an append holds beside its records may have {most} bytes"
    return TopicsError(errors.PAYLOAD_TOO_LARGE, message, {"max": most})


def _malformed(body: bytes, at: int) -> msgspec.DecodeError:
    if at >= len(body):
        return msgspec.DecodeError("Input data was truncated")
    return msgspec.DecodeError(f"JSON is malformed: invalid character (byte {at})")
