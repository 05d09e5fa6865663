"""Content types, sizes and gzip."""

import gzip
import random
import zlib

import pytest

from topics import limits
from topics.errors import TopicsError
from topics.gateway import bodies
from topics.gateway.app import QuartBody
from topics.gateway.messages import Request, Response


@pytest.mark.parametrize(
    "value",
    [
        b"application/json",
        b"application/json; charset=utf-8",
        b"Application/JSON;charset=UTF-8",
        b'application/json; charset="utf-8"',
        b"application/json ; version=1",
    ],
)
def test_json_types(value):
    bodies.check_type(value)


@pytest.mark.parametrize(
    "value", [None, b"", b"text/plain", b"application/jsonp", b"application/json; charset=latin-1", b"multipart/json"]
)
def test_other_types(value):
    with pytest.raises(TopicsError) as refused:
        bodies.check_type(value)
    assert refused.value.code == "unsupported_media_type"


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        (b"gzip", True),
        (b"deflate, GZIP;q=0.5", True),
        (b"x-gzip", True),
        (b"*", True),
        (b"br, *;q=0.1", True),
        (b"gzip;q=0", False),
        (b"gzip; q=0.000", False),
        (b"*, gzip;q=0", False),
        (b"*;q=0", False),
        (b"identity", False),
        (b"br", False),
        (b"", False),
    ],
)
def test_accept_encoding(accept, wanted):
    assert bodies.accepts_gzip(accept) is wanted


@pytest.mark.parametrize("size", [0, 1, 1000, 200_000, 1_000_000])
async def test_inflate(size):
    data = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    assert await bodies.inflate(gzip.compress(data), size) == data


async def test_several_members_are_one_body():
    assert await bodies.inflate(gzip.compress(b"a") + gzip.compress(b"b" * 9), 10) == b"a" + b"b" * 9
    with pytest.raises(TopicsError, match="too large"):
        await bodies.inflate(gzip.compress(b"a") + gzip.compress(b"b" * 10), 10)


@pytest.mark.parametrize("cut", [101, 1 << 20])
@pytest.mark.parametrize("data", [b"x" * 3_000_000, random.Random(1).randbytes(100_000) * 20], ids=["even", "noisy"])
async def test_a_large_body_comes_out_in_small_parts_however_it_came(data, cut):
    packed = gzip.compress(data[:-1], 1) + gzip.compress(data[-1:])
    parts = await bodies.inflate([packed[at : at + cut] for at in range(0, len(packed), cut)], len(data))
    assert isinstance(parts, list)
    assert max(map(len, parts)) <= limits.INFLATE_PART_BYTES
    assert b"".join(parts) == data
    with pytest.raises(TopicsError, match="too large"):
        await bodies.inflate(packed, len(data) - 1)
    with pytest.raises(TopicsError, match="ends too early"):
        await bodies.inflate([packed[:-1]], len(data))


@pytest.mark.parametrize("size", [11, 1000, 64 << 20])
async def test_a_bomb_is_too_large_and_never_inflated(size, monkeypatch):
    seen = []
    really = zlib.decompressobj

    class Watched:
        def __init__(self, window):
            self._inner = really(window)

        def decompress(self, data, most):
            out = self._inner.decompress(data, most)
            seen.append(len(out))
            return out

        def __getattr__(self, name):
            return getattr(self._inner, name)

    monkeypatch.setattr(zlib, "decompressobj", Watched)
    with pytest.raises(TopicsError) as refused:
        await bodies.inflate(gzip.compress(b"\0" * size), 10)
    assert refused.value.code == "payload_too_large"
    assert max(seen) <= 11


ABC = gzip.compress(b"abc", mtime=0)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"not gzip", "the body is not valid gzip"),
        (b"x", "the body is not valid gzip"),
        (ABC[:-1], "ends too early"),
        (ABC + ABC[:5], "ends too early"),
        (ABC + b"junk", "not gzip follows"),
        (ABC + b"j", "not gzip follows"),
        (ABC + b"\0", "not gzip follows"),
        (b"\x1f\x8b", "ends too early"),
        (b"\x1f", "ends too early"),
    ],
)
async def test_bad_gzip(data, why):
    with pytest.raises(TopicsError, match=why) as refused:
        await bodies.inflate(data, 1000)
    assert refused.value.code == "invalid_request"
    with pytest.raises(TopicsError, match=why):
        await bodies.inflate([bytes([byte]) for byte in data], 1000)


@pytest.mark.parametrize("size", [limits.GZIP_MIN_BYTES, limits.GZIP_THREAD_BYTES + 1, 1 << 20])
async def test_compress(size):
    request = Request("GET", b"/", b"", {b"accept-encoding": b"gzip"}, QuartBody(None))
    response = Response(b"a" * (size - 4))
    response.tail = b"tail"
    await bodies.compress(request, response)
    assert gzip.decompress(response.body + response.tail) == b"a" * (size - 4) + b"tail"
    assert (b"content-encoding", b"gzip") in response.headers


async def test_small_answers_stay_plain():
    request = Request("GET", b"/", b"", {b"accept-encoding": b"gzip"}, QuartBody(None))
    response = Response(b"a" * (limits.GZIP_MIN_BYTES - 1))
    await bodies.compress(request, response)
    assert response.headers == ()


@pytest.mark.parametrize(
    ("length", "code"), [(b"11", "payload_too_large"), (b"9" * 40, "payload_too_large"), (b"x", "invalid_request")]
)
def test_lengths(length, code):
    bodies.check_length(b"10", 10)
    with pytest.raises(TopicsError) as refused:
        bodies.check_length(length, 10)
    assert refused.value.code == code


async def test_very_many_small_members_come_out_in_few_parts():
    one = gzip.compress(b"abc", mtime=0)
    body = one * (limits.BODY_JOIN_BYTES // 3 + 1)
    parts = await bodies.inflate([body[at : at + 10_000] for at in range(0, len(body), 10_000)], 1 << 26)
    assert isinstance(parts, list)
    assert len(parts) <= 2 + 2 * limits.BODY_JOIN_BYTES // limits.BODY_PART_BYTES
    assert b"".join(parts) == b"abc" * (limits.BODY_JOIN_BYTES // 3 + 1)
