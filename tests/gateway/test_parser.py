"""The parser alone: any cut of the same bytes gives the same requests; what is not HTTP/1.1 is refused."""

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.gateway.harness import chunked, request
from topics import limits
from topics.gateway.parser import RequestParser, split_target

HOST = b"Host: x\r\n"


def outcome(*pieces: bytes):
    """What a parser makes of bytes, as plain values."""
    parser = RequestParser()
    for piece in pieces:
        if parser.error is None and parser.rest is None:
            parser.feed(piece)
    requests = [
        (
            one.method,
            one.target,
            tuple(one.headers),
            b"".join(one.parts),
            one.complete,
            one.keep_alive,
            one.upgrade,
            one.refusal and one.refusal.status,
        )
        for one in parser.queue
    ]
    return requests, parser.error and parser.error.status


def cut(data: bytes, at: list[int]) -> list[bytes]:
    marks = [0, *sorted({place % (len(data) + 1) for place in at}), len(data)]
    return [data[start:end] for start, end in pairwise(marks)]


BODIES = st.binary(max_size=40)
WHOLE = st.one_of(
    st.builds(lambda body: request("POST", "/v0/topics/a", body), BODIES),
    st.builds(lambda body: chunked("POST", "/v0/topics/a/diff", *body), st.lists(BODIES.filter(bool), max_size=4)),
    st.sampled_from(
        [request("GET", "/x?y=%20"), request("HEAD", "/"), b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"]
    ),
    st.sampled_from([b"GET / HTTP/1.1\r\n" + HOST + b"Upgrade: nothing\r\nConnection: upgrade\r\n\r\n"]),
)
ODD = st.sampled_from(
    [
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET / HTTP/1.1\r\nA : b\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET / HTTP/1.1\n\n",
    ]
)


@given(st.lists(WHOLE, min_size=1, max_size=5), st.none() | ODD, st.lists(st.integers(0, 2000), max_size=12))
def test_any_cut_gives_the_same_requests(requests, odd, at):
    data = b"".join(requests) + (odd or b"")
    whole = outcome(data)
    assert outcome(*cut(data, at)) == whole
    assert len(whole[0]) >= len(requests)
    assert (whole[1] is not None) == (odd is not None)


def test_byte_by_byte():
    data = request("POST", "/a", b"xyz") + chunked("POST", "/b", b"ab", b"c")
    assert outcome(*(bytes([byte]) for byte in data)) == outcome(data)


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=6))
def test_no_bytes_at_all_make_it_fail(data, at):
    outcome(*cut(data, at))


def test_mutations_never_crash_it_and_never_depend_on_the_cut():
    seed = random.randrange(1 << 32)
    print("seed", seed)
    dice = random.Random(seed)
    for _ in range(2000):
        data = bytearray(request("POST", "/a?b", b"{}") + chunked("PUT", "/c", b"12", b"3") + request("GET", "/"))
        for _ in range(dice.randrange(1, 4)):
            at = dice.randrange(len(data))
            data[at : at + dice.randrange(3)] = dice.randbytes(dice.randrange(3))
        whole = up_to_odd(outcome(bytes(data)))
        assert up_to_odd(outcome(*cut(bytes(data), [dice.randrange(400) for _ in range(5)]))) == whole, bytes(data)


def up_to_odd(made):
    """A method that llhttp does not know is refused behind another request in the same bytes; so leave it out."""
    requests, error = made
    for place, (method, *_) in enumerate(requests):
        if method not in ("GET", "POST", "PUT", "HEAD"):
            return requests[:place], 400
    return requests, error


@pytest.mark.parametrize("before", [b"", b"\r\n"])
def test_a_method_that_llhttp_does_not_know(before):
    data = request("BREW", "/pot", b"tea") + request("GET", "/") + request("P", "/")
    method, target, _, body, complete, keep_alive, _, refusal = outcome(before + data)[0][0]
    assert (method, target, body, complete, keep_alive, refusal) == ("BREW", b"/pot", b"tea", True, True, None)
    requests, error = outcome(*(bytes([byte]) for byte in before + data))
    assert [one[0] for one in requests] == ["BREW", "GET", "P"]
    assert error is None
    assert outcome(request("GET", "/"), request("BREW", "/pot", b"tea"))[1] is None
    assert outcome(request("GET", "/") + request("BREW", "/pot", b"tea"))[1] == 400


def test_a_method_without_an_end():
    parser = RequestParser()
    parser.feed(b"A" * limits.HTTP_METHOD_BYTES)
    assert parser.error is None
    assert parser.in_head  # the time for a head runs
    assert outcome(b"A" * limits.HTTP_METHOD_BYTES, b"A") == ([], 400)


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 400),  # no Host
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505),
        (b"GET /\r\n\r\n", 505),  # HTTP/0.9
        (b"GET / HTTP/1.1\r\nHost: a\r\nExpect: tea\r\n\r\n", 417),
        (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"GET /%b HTTP/1.1\r\nHost: a\r\n\r\n" % (b"a" * limits.HTTP_URL_BYTES), 414),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: %b\r\n\r\n" % (b"a" * limits.HTTP_HEAD_BYTES), 431),
        (b"GET / HTTP/1.1\r\nHost: a\r\n%b\r\n" % (b"a: b\r\n" * limits.HTTP_HEADERS_MAX), 431),
        (b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    ],
)
def test_heads_that_are_refused(head, status):
    requests, error = outcome(head)
    assert requests[-1][-1] == status
    assert error is None


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.2\r\n" + HOST + b"\r\n",
        b"F@O / HTTP/1.1\r\n" + HOST + b"\r\n",
        b"FOO\r\n",
        b"FOO \r\n",
        b"GET /a b HTTP/1.1\r\n" + HOST + b"\r\n",
        b"GET /\xff HTTP/1.1\r\n" + HOST + b"\r\n",
        b"GET / HTTP/1.1\n" + HOST + b"\r\n",
        b"GET / HTTP/1.1\r\n" + HOST + b"A : b\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + HOST + b"A: b\r\n c\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + HOST + b"A: a\0b\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + HOST + b"nothing\r\n\r\n",
        b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 3, 3\r\n\r\nabc",
        b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: +3\r\n\r\nabc",
        b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 0x3\r\n\r\nabc",
        b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 99999999999999999999999\r\n\r\n",
        b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: gzip\r\n\r\n",
        b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        chunked("POST", "/", b"abc").replace(b"3\r\nabc\r\n", b"3\r\nabcd\r\n"),
        chunked("POST", "/", b"abc").replace(b"3\r\nabc", b"-3\r\nabc"),
        chunked("POST", "/", b"abc").replace(b"3\r\nabc", b" 3\r\nabc"),
        chunked("POST", "/", b"abc").replace(b"3\r\nabc", b"3\nabc"),
        chunked("POST", "/", b"abc").replace(b"3\r\nabc", b"11111111111111111\r\nabc"),
    ],
)
def test_what_is_not_http(data):
    assert outcome(data)[1] == 400


def test_an_endless_header_is_cut_short():
    parser = RequestParser()
    parser.feed(b"GET / HTTP/1.1\r\nX: ")
    fed = 0
    while parser.error is None:
        parser.feed(b"a" * 1000)
        fed += 1000
    assert parser.error.status == 431
    assert fed <= limits.HTTP_HEAD_BYTES + 1000


@pytest.mark.parametrize("space", [b"", b" ", b"\t", b" \t "])
def test_white_space_around_a_value_is_no_part_of_it(space):
    head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length:%b3%b\r\nExpect:%b100-continue%b\r\nKey:%ba b%b\r\n\r\n"
    ((_, _, headers, body, complete, _, _, refusal),), error = outcome(head % ((space,) * 6) + b"abc")
    assert headers[1:] == ((b"content-length", b"3"), (b"expect", b"100-continue"), (b"key", b"a b"))
    assert (body, complete, refusal, error) == (b"abc", True, None, None)


def test_white_space_behind_a_transfer_coding():
    data = chunked("POST", "/", b"abc").replace(b": chunked\r\n", b": chunked \r\n")
    ((_, _, _, body, complete, _, _, refusal),), error = outcome(data)
    assert (body, complete, refusal, error) == (b"abc", True, None, None)


def test_trailers_are_not_headers():
    data = chunked("POST", "/", b"abc")[:-2] + b"Host: other\r\nX: y\r\n\r\n"
    ((_, _, headers, body, complete, *_),), error = outcome(data)
    assert (body, complete, error) == (b"abc", True, None)
    assert [value for name, value in headers if name == b"host"] == [b"test"]


def test_what_follows_an_upgrade_is_kept_as_it_is():
    parser = RequestParser()
    head = b"GET /ws HTTP/1.1\r\nHost: x\r\nUpgrade: WebSocket\r\nConnection: keep-alive, Upgrade\r\n"
    head += b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    parser.feed(request("GET", "/first") + head + b"\x81\x00raw")
    first, second = parser.queue
    assert (first.target, second.upgrade, parser.rest) == (b"/first", "websocket", b"\x81\x00raw")
    again = RequestParser()
    again.feed(second.head_bytes())
    assert again.queue[0].headers == second.headers


@pytest.mark.parametrize(
    ("target", "parts"),
    [
        (b"/a/b?c=d?e", (b"/a/b", b"c=d?e")),
        (b"/", (b"/", b"")),
        (b"http://h/a?b", (b"/a", b"b")),
        (b"http://h:1", (b"/", b"")),
        (b"http://h?b", (b"/", b"b")),
        (b"*", (b"*", b"")),
        (b"/a://b", (b"/a://b", b"")),
    ],
)
def test_split_target(target, parts):
    assert split_target(target) == parts


@pytest.mark.parametrize("size", [1, 3, 5_000, 40_000])
def test_a_body_in_very_many_chunks_is_kept_in_few_parts(size: int):
    body = bytes(range(256)) * 800
    chunks = [body[at : at + size] for at in range(0, len(body), size)]
    head = b"POST /x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
    parser = RequestParser()
    parser.feed(head + b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n")
    [request] = parser.queue
    assert request.received == len(body)
    assert len(request.parts) <= 2 + len(body) // (limits.BODY_PART_BYTES // 2)
    assert request.peek() == body
    assert request.take() == body
