"""A server that appends and diffs just enough for the load generators, and lies if told to."""

import json
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Records = list[dict[str, Any]]


class StandIn:
    """`lie` may change what a topic holds before it is read."""

    def __init__(self, lie: Callable[[Records], None] | None = None, status: int = 200) -> None:
        self.status = status
        self._topics: defaultdict[str, Records] = defaultdict(list)
        self._lie = lie
        self._lock = threading.Lock()

    def append(self, topic: str, body: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            held = self._topics[topic]
            first = len(held) + 1
            held += [{"$seq": first + n, "data": record["data"]} for n, record in enumerate(body["records"])]
        return {"topic": topic, "first_seq": first, "last_seq": len(held)}

    def diff(self, topic: str, body: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            if self._lie is not None:
                self._lie(self._topics[topic])
                self._lie = None
            held = [record for record in self._topics[topic] if record["$seq"] > body["from_seq"]]
        page = held[: body["limit"]]
        after = page[-1]["$seq"] if page else body["from_seq"]
        return {"records": page, "next_from_seq": after, "caught_up": len(page) == len(held), "tombstone": None}


@contextmanager
def serving(stand_in: StandIn) -> Iterator[tuple[str, int]]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            name, _, action = self.path.removeprefix("/v0/topics/").partition("?")[0].partition("/")
            answer = stand_in.diff(name, body) if action == "diff" else stand_in.append(name, body)
            text = json.dumps(answer, separators=(",", ":")).encode()
            self.send_response(stand_in.status)
            self.send_header("content-length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield ("127.0.0.1", server.server_port)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
