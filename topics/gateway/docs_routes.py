"""`/v0/openapi.json`, and a page that shows it. Both are the same for everybody, and as open as the probes: without a
key unless TOPICS_PROBE_AUTH asks for one. They tell what the product can do, nothing of what is stored.
"""

import base64
import re
from functools import lru_cache
from hashlib import sha256
from importlib.resources import files

import msgspec

from topics.gateway.dispatch import Gateway
from topics.gateway.messages import Request, Response
from topics.gateway.routing import Route, Routes
from topics.limits import Limits

HTML = b"text/html; charset=utf-8"
_SCRIPT = re.compile(r"<script>(.*?)</script>", re.DOTALL)
_STYLE = re.compile(r"<style>(.*?)</style>", re.DOTALL)


async def openapi(gateway: Gateway, request: Request) -> Response:
    return Response(rendered(gateway.routes, gateway.limits))


async def docs(gateway: Gateway, request: Request) -> Response:
    return Response(page()[0], content_type=HTML, headers=page()[1])


@lru_cache(maxsize=1)
def rendered(routes: Routes, bounds: Limits) -> bytes:
    from topics.gateway.openapi.document import document  # a gateway has it with the framework, not at its start

    return msgspec.json.encode(document(routes.table, bounds))


@lru_cache(maxsize=1)
def page() -> tuple[bytes, tuple[tuple[bytes, bytes], ...]]:
    """The page and its headers: it runs its own script alone, and speaks to this server alone."""
    text = files("topics.gateway.openapi").joinpath("page.html").read_text(encoding="utf-8")
    policy = (
        f"default-src 'none'; script-src {_source(_SCRIPT, text)}; style-src {_source(_STYLE, text)}; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    headers = (
        (b"content-security-policy", policy.encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"no-referrer"),
    )
    return text.encode(), headers


def _source(part: re.Pattern[str], text: str) -> str:
    found = part.search(text)
    assert found is not None
    return f"'sha256-{base64.b64encode(sha256(found[1].encode()).digest()).decode()}'"


ROUTES = (
    Route("GET", "/v0/openapi.json", openapi, "openapi"),
    Route("GET", "/v0/docs", docs, "docs"),
)
