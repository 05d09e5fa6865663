"""Composite cursors: where a stream of many topics stands, as the `id:` of its frames.

    up to 64 topics   base64url of {"name":seq,…}
    more              "~" and base64url of the seqs alone, as varints in the order of the session's topics

Both are whole: one id restores every topic's position. Clients treat them as opaque.
"""

import base64
import binascii
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from topics import limits
from topics.errors import TopicsError, invalid

TOKEN_MARK = b"~"
_map = msgspec.json.Decoder(dict[str, int])
SEQ_MAX = 2**64 - 1


def encode_map(pairs: Iterable[bytes]) -> bytes:
    """`pairs` are `"name":seq`."""
    return base64.urlsafe_b64encode(b"{%b}" % b",".join(pairs)).rstrip(b"=")


def encode_token(seqs: Iterable[int]) -> bytes:
    return TOKEN_MARK + base64.urlsafe_b64encode(b"".join(map(_varint, seqs))).rstrip(b"=")


def decode_map(text: str) -> dict[str, int]:
    """The positions that an id of few topics says. Raises `invalid_request`."""
    try:
        found = _map.decode(_unbase64(text))
        if all(0 <= seq <= SEQ_MAX for seq in found.values()):
            return found
    except (ValueError, msgspec.DecodeError):
        pass
    raise _bad_cursor()


def _bad_cursor() -> TopicsError:
    return invalid("the cursor is not one this server gave out", field="cursor")


def decode_cursor(text: str, topics: Sequence[str]) -> Mapping[str, int]:
    """The positions in an id of a stream of these topics, in this order. Raises `invalid_request`."""
    if not text.startswith(TOKEN_MARK.decode()):
        return decode_map(text)
    try:
        return dict(zip(topics, _read_varints(_unbase64(text[1:])), strict=True))
    except ValueError:
        raise _bad_cursor() from None


def decode_id(text: str, topics: Sequence[str]) -> Mapping[str, int]:
    """The same; nothing if it is no such id: a browser cannot mend it."""
    try:
        return decode_cursor(text, topics) if len(text) <= limits.CURSOR_BYTES_MAX else {}
    except Exception:  # whatever a client makes up
        return {}


def _unbase64(text: str) -> bytes:
    plain = text.rstrip("=")
    try:
        raw = plain.replace("-", "+").replace("_", "/").encode("ascii") + b"=" * (-len(plain) % 4)
        return base64.b64decode(raw, validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise ValueError("not base64url") from error


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varints(data: bytes) -> list[int]:
    values, value, shift = [], 0, 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            values.append(min(value, SEQ_MAX))
            value = shift = 0
        elif shift > 63:
            raise ValueError("a seq has at most 64 bits")
    if shift:
        raise ValueError("the last seq is cut off")
    return values
