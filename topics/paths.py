"""Paths of the HTTP API, for those who call it."""

from urllib.parse import quote


def topic_path(topic: str, call: str = "") -> str:
    return f"/v0/topics/{_segment(topic)}" + (f"/{call}" if call else "")


def group_path(topic: str, group: str, call: str = "") -> str:
    return topic_path(topic, f"groups/{_segment(group)}" + (f"/{call}" if call else ""))


def router_path(router: str) -> str:
    return f"/v0/routers/{_segment(router)}"


def _segment(name: str) -> str:
    """Whatever it is, it stays one segment: a client would take a plain ".." for the way up, to another route."""
    return quote(name, safe="") if name.strip(".") else name.replace(".", "%2E")
