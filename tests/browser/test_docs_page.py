"""The page at /v0/docs in a real browser: it shows every operation under its strict policy, and can send requests."""

import httpx

from topics.gateway.table import ROUTES
from topics.testing.server import wait_until

SEND = 'document.querySelector("#topic_put button").click()'


def test_every_operation_is_shown_and_can_be_tried(chromium, server):
    chromium.open(f"{server.url}/v0/docs")
    wait_until(lambda: chromium.run('document.getElementById("main").dataset.ready'), "the page to be filled")
    shown = chromium.run('[...document.querySelectorAll("main > details > summary .method")].length')
    assert shown == len(ROUTES.table)
    assert chromium.run("getComputedStyle(document.body).maxWidth") != "none"  # its style is let in
    chromium.run(SEND)
    result = 'document.querySelector("#topic_put button + pre").textContent'
    wait_until(lambda: "created" in chromium.run(result), "an answer")
    assert chromium.run(result).startswith("201 ")
    assert httpx.get(f"{server.url}/v0/topics/orders").json()["config"]["durable"] is True
