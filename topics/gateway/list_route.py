"""The list of topics, merged over all shards in name order (API §1.3). Never a partial answer."""

import base64
import binascii
import heapq
from collections.abc import Iterator

import msgspec

from topics import limits
from topics.errors import invalid
from topics.gateway.dispatch import Gateway
from topics.gateway.messages import Request, Response
from topics.gateway.routing import Route
from topics.rpc.open_calls import Reply


class Position(msgspec.Struct, forbid_unknown_fields=True):
    """What a cursor holds: the last name of the page before."""

    after: str


_position = msgspec.json.Decoder(Position)


def encode_cursor(after: str) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(Position(after))).decode()


def decode_cursor(cursor: str) -> str:
    try:
        raw = base64.b64decode(cursor.replace("-", "+").replace("_", "/"), validate=True)
        return _position.decode(raw).after
    except (binascii.Error, ValueError, msgspec.DecodeError):
        raise invalid("the cursor is not one this server gave out", field="cursor") from None


def page_size_of(text: str | None) -> int:
    if text is None:
        return limits.LIST_PAGE_DEFAULT
    digits = text.lstrip("0")
    if not text.isascii() or not text.isdigit() or not digits:
        raise invalid("page_size must be a whole number of at least 1", field="page_size")
    return min(int(digits[:18]), limits.LIST_PAGE_MAX)


async def list_topics(gateway: Gateway, request: Request) -> Response:
    args = request.args
    size = page_size_of(args.get("page_size"))
    head = {
        "prefix": args.get("prefix", ""),
        "after": decode_cursor(args["cursor"]) if "cursor" in args else "",
        "limit": size,
        "touch": request.flag("touch", False),
        "prefixes": request.principal.prefixes,
    }
    return merge_pages("topics", await gateway.shards.ask_all("list", head), size)


def merge_pages(member: str, pages: list[Reply], size: int) -> Response:
    """One page out of those of all shards."""
    names: list[str] = []
    entries: list[bytes] = []
    more = False
    for name, entry in heapq.merge(*map(_entries, pages)):
        if len(names) == size:
            more = True
            break
        names.append(name)
        entries.append(entry)
    more = more or any(page.head["more"] for page in pages)
    body = b'{"%b":[%b]' % (member.encode(), b",".join(entries))
    if more and names:
        body += b',"next_cursor":"%b"' % encode_cursor(names[-1]).encode()
    return Response(body, 200, {})


def _entries(page: Reply) -> Iterator[tuple[str, bytes]]:
    start = 0
    for name, length in zip(page.head["names"], page.head["sizes"], strict=True):
        yield name, page.body[start : start + length]
        start += length


ROUTES = (Route("GET", "/v0/topics", list_topics, "topic.list"),)
