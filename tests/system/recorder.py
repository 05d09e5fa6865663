"""A client that writes down every attempt, for the judge: what it asked, what it was told, and when."""

import time
from urllib.parse import urlsplit

import httpx

from tests.system.client import Client
from topics.testing.history import APPEND, DELETE, DIFF, OK, PUT, STATE, UNKNOWN, History, Op

KINDS = {("POST", ""): APPEND, ("POST", "diff"): DIFF, ("POST", "delete"): DELETE, ("PUT", ""): PUT, ("GET", ""): STATE}


class Recorder(Client):
    """A request without an answer, or with a 503, may have taken effect at any time since, or never."""

    def __init__(self, server, name: str, history: History) -> None:
        super().__init__(server)
        self.name = name
        self.history = history

    def once(self, method, path, body=None) -> httpx.Response:
        op = self._op(method, path, body)
        if op is None:
            return super().once(method, path, body)
        self.history.ops.append(op)  # atomic; the answer is entered by this thread alone
        answer = super().once(method, path, body)
        if answer.status_code in (200, 201):
            op.result = answer.json()
            op.ended, op.outcome = time.monotonic(), OK
        return answer

    def _op(self, method, path, body) -> Op | None:
        _, _, _, *rest = urlsplit(path).path.split("/")
        if not rest:
            return None  # a list
        kind = KINDS[method, "/".join(rest[1:])]
        return Op(self.name, kind, rest[0], _args(kind, body or {}), time.monotonic(), outcome=UNKNOWN)


def _args(kind, body):
    if kind == APPEND:
        records = body["records"]
        return {"write": records[0]["data"][0], "tags": [record.get("tag") for record in records], "keyed": True}
    if kind == DIFF:
        return {"from_seq": 0, "wait_ms": 0} | body
    return {"config": body} if kind == PUT else body
