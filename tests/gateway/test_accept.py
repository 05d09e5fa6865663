"""The Accept header decides by weight, then exactness, then order."""

import pytest

from topics.gateway.accept import preferred

TEXT, JSON = b"text/plain", b"application/json"


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        (b"", TEXT),
        (b"*/*", TEXT),
        (b"text/html", TEXT),
        (b"application/json", JSON),
        (b"Application/JSON ; charset=utf-8", JSON),
        (b"application/*", JSON),
        (b"application/json, text/plain, */*", JSON),
        (b"text/plain, application/json", TEXT),
        (b"application/json;q=0.5, text/plain", TEXT),
        (b"text/plain;q=0.5, application/json;q=0.6", JSON),
        (b"application/json;q=0", TEXT),
        (b"application/json;q=0, */*", TEXT),
        (b"text/plain;q=0, */*", JSON),
        (b"text/*;q=0.9, application/json;q=0.8", TEXT),
        (b"*/*;q=0.1, application/json", JSON),
        (b"*/*, application/json", JSON),
        (b"application/json;q=x, text/plain;q=0.001", TEXT),
        (b"application/json;q=nan", TEXT),
        (b"application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.4,*/*;q=0.1", TEXT),
        (b";;,,=", TEXT),
    ],
)
def test_preferred(accept, chosen):
    assert preferred(accept, TEXT, JSON) == chosen
