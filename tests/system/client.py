"""Clients: a careful one that retries what was lost or refused and notes it, a slow one, and threads of them."""

import json
import socket
import threading
import time

import httpx

from topics.errors import NOT_READY, SHUTTING_DOWN
from topics.testing.server import DEADLINE_S, Server, join

RETRY_S = 0.03
JOIN_S = 3 * DEADLINE_S  # a client that gets no answer gives up before, and says which


class Client:
    """For one thread. It finds the server again after a restart on another port.

    A request that hangs is a failure: a killed process closes its sockets, so nobody has to wait for a time-out.
    """

    def __init__(self, server: Server) -> None:
        self.server = server
        self.lost = 0  # no answer: the write may or may not have happened
        self.refused = 0  # 503
        self._http = httpx.Client(timeout=DEADLINE_S)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._http.close()

    def once(self, method, path, body=None) -> httpx.Response:
        """One attempt."""
        return self._http.request(method, self.server.url + path, json=body)

    def put(self, topic, **config):
        return self._insist("PUT", f"/v0/topics/{topic}", config)

    def append(self, topic, body):
        return self._insist("POST", f"/v0/topics/{topic}", body)

    def diff(self, topic, **query):
        return self._insist("POST", f"/v0/topics/{topic}/diff", query)

    def delete(self, topic, **query):
        return self._insist("POST", f"/v0/topics/{topic}/delete", query)

    def state(self, topic):
        return self._insist("GET", f"/v0/topics/{topic}")

    def names(self):
        """Every topic, over all pages."""
        names, cursor = [], ""
        while True:
            page = self._insist("GET", "/v0/topics?page_size=1000" + (f"&cursor={cursor}" if cursor else ""))
            names += [topic["topic"] for topic in page["topics"]]
            cursor = page.get("next_cursor")
            if cursor is None:
                return names

    def read_all(self, topic):
        """Every record from the beginning, and the ranges that tombstones said were lost."""
        records, gaps, from_seq = [], [], 0
        while True:
            page = self.diff(topic, from_seq=from_seq, limit=1000, include_tags=True)
            check_page(page, from_seq)
            records += page["records"]
            if page["tombstone"]:
                gaps.append(page["tombstone"])
            from_seq = page["next_from_seq"]
            if page["caught_up"]:
                return records, gaps

    def _insist(self, method, path, body=None):
        until = time.monotonic() + DEADLINE_S
        while True:
            try:
                answer = self.once(method, path, body)
            except httpx.TimeoutException:
                raise AssertionError(f"{method} {path} hung") from None
            except httpx.TransportError:
                self.lost += 1
            else:
                if answer.status_code in (200, 201):
                    return answer.json()
                check_refusal(answer)
                self.refused += 1
            assert time.monotonic() < until, f"{method} {path}: not answered for {DEADLINE_S} s"
            time.sleep(RETRY_S)


def check_refusal(answer):
    """The only refusal that a killed process may cause."""
    assert answer.status_code == 503, (answer.status_code, answer.text)
    assert answer.json()["error"]["code"] in (NOT_READY, SHUTTING_DOWN), answer.text
    assert int(answer.headers["retry-after"]) >= 1


def check_page(page, from_seq):
    """What holds for every answer of a diff."""
    seqs = [record["$seq"] for record in page["records"]]
    assert seqs == sorted(set(seqs)), seqs
    assert not seqs or from_seq < seqs[0], (from_seq, seqs)
    assert max([from_seq, *seqs]) <= page["next_from_seq"] <= page["head_seq"], page
    assert page["caught_up"] == (page["next_from_seq"] == page["head_seq"]), page


class Upload:
    """A POST whose body is sent in parts, on a connection of its own."""

    def __init__(self, server, topic, body) -> None:
        self.body = json.dumps(body).encode()
        self.sock = socket.create_connection(("127.0.0.1", server.port), timeout=DEADLINE_S)
        head = f"POST /v0/topics/{topic} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        self.sock.sendall(f"{head}Content-Length: {len(self.body)}\r\nExpect: 100-continue\r\n\r\n".encode())
        assert self.sock.recv(100).startswith(b"HTTP/1.1 100 ")  # from now on it is under way
        self.sock.sendall(self.body[:10])

    def finish(self):
        """The rest of the body; head and JSON of the answer. The server closes."""
        self.sock.sendall(self.body[10:])
        with self.sock:
            head, _, body = b"".join(iter(lambda: self.sock.recv(65536), b"")).partition(b"\r\n\r\n")
        return head, json.loads(body)


class Crew:
    """Threads whose first failure ends them all and fails the test."""

    def __init__(self) -> None:
        self.stopping = threading.Event()
        self.failure: BaseException | None = None
        self._threads: list[threading.Thread] = []

    def start(self, work, *args) -> None:
        def run():
            try:
                work(*args)
            except BaseException as error:
                self.failure = self.failure or error
                self.stopping.set()

        name = getattr(work, "__qualname__", repr(work))
        self._threads.append(threading.Thread(target=run, name=f"{name}{args}", daemon=True))
        self._threads[-1].start()

    @property
    def busy(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def check(self) -> None:
        if self.failure is not None:
            raise self.failure

    def join(self) -> None:
        """Let everybody finish what they are at."""
        self.stopping.set()
        try:
            join(*self._threads, seconds=JOIN_S)
        finally:
            self.check()
