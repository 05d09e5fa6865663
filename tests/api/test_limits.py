"""Caps of a whole instance, over HTTP, with several gateways and shards and many clients at once."""

import socket
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from topics.board import Board
from topics.testing.server import Server, wait_until

ONE, TWO = {"authorization": "Bearer one"}, {"authorization": "Bearer two"}


@contextmanager
def serving(folder: Path, **settings: Any) -> Iterator[Server]:
    with Server(folder, **settings) as server:
        yield server.start().wait_ready()


def limited(answer: httpx.Response, limit: str, most: int) -> bool:
    """Whether this is the refusal of a cap, whole."""
    if answer.status_code != 429:
        return False
    error = answer.json()["error"]
    assert (error["code"], error["detail"]["limit"], error["detail"]["max"]) == ("throttled", limit, most)
    assert int(answer.headers["retry-after"]) >= 1
    return True


def at_once(count: int, do: Callable[[int], Any], workers: int = 16) -> list[Any]:
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(do, range(count)))


# --- requests of a key --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def crowded(tmp_path_factory) -> Iterator[Server]:
    """Two gateways; a key may have four requests under way."""
    with serving(tmp_path_factory.mktemp("inflight"), gateways=2, api_keys="one,two", max_inflight_per_key=4) as server:
        for key, name in ((ONE, "one"), (TWO, "two")):
            assert httpx.put(f"{server.url}/v0/topics/{name}", json={}, headers=key).status_code == 201
        yield server


@pytest.fixture
def board(crowded) -> Iterator[Board]:
    opened = Board.open(str(Path(crowded.holder()["run_dir"]) / "board"))
    wait_until(lambda: opened.key_total(0, "key_requests") == 0, "earlier requests to end")
    yield opened
    opened.close()


class LongPoll:
    """A request that stays under way until its client goes."""

    def __init__(self, server: Server, body: str = '{"from_seq":0,"wait_ms":30000}') -> None:
        self.sock = socket.create_connection(("127.0.0.1", server.port), timeout=60)
        head = "POST /v0/topics/one/diff HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        head += f"authorization: Bearer one\r\ncontent-length: {len(body)}\r\n\r\n"
        self.sock.sendall((head + body).encode())

    def close(self) -> None:
        self.sock.close()


def under_way(board: Board, count: int) -> None:
    wait_until(lambda: board.key_total(0, "key_requests") == count, f"{count} requests under way")


def fill(server: Server, board: Board) -> list[LongPoll]:
    polls = []
    for count in range(1, 5):
        polls.append(LongPoll(server))
        under_way(board, count)
    return polls


def test_a_key_has_so_many_requests_under_way(crowded, board):
    polls = fill(crowded, board)
    for _ in range(8):  # whichever gateway it meets
        assert limited(httpx.get(f"{crowded.url}/v0/topics/one", headers=ONE), "max_inflight_per_key", 4)
        assert httpx.get(f"{crowded.url}/v0/topics/two", headers=TWO).status_code == 200
        assert httpx.get(f"{crowded.url}/v0/health", headers=ONE).status_code == 200
    assert httpx.get(f"{crowded.url}/v0/topics/one").status_code == 401  # nobody's place is taken
    polls.pop().close()  # the client goes
    under_way(board, 3)
    assert httpx.get(f"{crowded.url}/v0/topics/one", headers=ONE).status_code == 200
    under_way(board, 3)
    assert httpx.post(f"{crowded.url}/v0/topics/one", json={"records": 1}, headers=ONE).status_code == 400
    under_way(board, 3)  # refused ones give it back, too
    for poll in polls:
        poll.close()
    under_way(board, 0)


def test_a_gateway_that_is_killed_gives_back_its_places(crowded, board):
    polls = fill(crowded, board)
    held = [0, 0]
    for gateway in range(2):
        with board.locked():
            held[gateway] = board._cells[board.key_cell(gateway, 0, "key_requests")]
    victim = held.index(max(held))
    pid = crowded.kill("gateway", victim)
    crowded.wait_back("gateway", victim, pid)
    under_way(board, 4 - held[victim])
    with httpx.Client(headers=ONE) as client:
        wait_until(lambda: client.get(f"{crowded.url}/v0/topics/one").status_code == 200, "a place")
    for poll in polls:
        poll.close()
    under_way(board, 0)


def test_the_cap_holds_under_concurrency(crowded, board):
    """Far more long-polls than may be, at once: four are let in, wait, and get what is written then."""
    refused: list[int] = []

    def poll(n: int) -> int:
        body = {"from_seq": 0, "wait_ms": 30_000}
        answer = httpx.post(f"{crowded.url}/v0/topics/one/diff", json=body, headers=ONE, timeout=60)
        if limited(answer, "max_inflight_per_key", 4):
            refused.append(n)
        return answer.status_code

    with ThreadPoolExecutor(24) as pool:
        polls = [pool.submit(poll, n) for n in range(24)]
        wait_until(lambda: len(refused) == 20, "all but four to be refused")
        under_way(board, 4)
        record = {"records": [{"data": 1}]}
        assert httpx.post(f"{crowded.url}/v0/topics/one", json=record, headers=TWO).status_code == 200
        assert Counter(poll.result() for poll in polls) == {200: 4, 429: 20}
    under_way(board, 0)


def test_a_cap_of_0_is_off(tmp_path):
    caps = {"max_inflight_per_key": 0, "max_topics": 0, "max_total_bytes": 0, "max_connections": 0}
    with serving(tmp_path, shards=1, api_keys="one", **caps) as server:
        with httpx.Client(base_url=server.url, headers=ONE) as client:
            body = {"records": [{"data": "x" * 1000}]}
            statuses = at_once(40, lambda n: client.post(f"/v0/topics/t{n}", json=body).status_code)
        assert set(statuses) == {201}


# --- topics and bytes ---------------------------------------------------------------------------------------------


def test_topics_are_capped_exactly(tmp_path):
    with serving(tmp_path, shards=2, gateways=2, max_topics=10) as server:
        client = httpx.Client(base_url=server.url, timeout=60)

        def create(n: int) -> httpx.Response:
            if n % 2:
                return client.put(f"/v0/topics/t{n}", json={})
            return client.post(f"/v0/topics/t{n}", json={"records": [{"data": n}]})

        answers = at_once(60, create)
        made = [n for n, answer in enumerate(answers) if answer.status_code == 201]
        assert len(made) == 10
        assert all(limited(answer, "max_topics", 10) for n, answer in enumerate(answers) if n not in made)
        for n in made:  # what exists can be changed and written to
            assert client.put(f"/v0/topics/t{n}", json={"ttl_ms": 60_000}).status_code == 200
            assert client.post(f"/v0/topics/t{n}", json={"records": [{"data": 1}]}).status_code == 200
        assert client.delete(f"/v0/topics/t{made[0]}").status_code == 200
        statuses = Counter(at_once(20, lambda n: client.put(f"/v0/topics/new{n}", json={}).status_code))
        assert statuses == {201: 1, 429: 19}
        assert len(client.get("/v0/topics").json()["topics"]) == 10


def test_bytes_are_capped_exactly(tmp_path):
    most = 100_000
    with serving(tmp_path, shards=2, gateways=2, max_total_bytes=most) as server:
        client = httpx.Client(base_url=server.url, timeout=60)
        body = {"records": [{"data": "x" * 2998}]}  # 3,000 bytes with its quotes
        answers = at_once(60, lambda n: client.post(f"/v0/topics/t{n % 6}", json=body))
        taken = sum(answer.status_code in (200, 201) for answer in answers)
        assert all(answer.status_code in (200, 201) or limited(answer, "max_total_bytes", most) for answer in answers)
        names = [entry["topic"] for entry in client.get("/v0/topics").json()["topics"]]
        sizes = [client.get(f"/v0/topics/{name}").json()["bytes"] for name in names]
        assert sum(sizes) <= most < sum(sizes) + sum(sizes) / taken  # not one more would have fitted
        assert limited(client.post("/v0/topics/t0", json=body), "max_total_bytes", most)
        assert client.put("/v0/topics/t0", json={"ttl_ms": 0}).status_code == 200
        assert client.post("/v0/topics/t0/delete", json={"before_seq": 1 << 40}).status_code == 200
        wait_until(lambda: client.post("/v0/topics/t1", json=body).status_code == 200, "room")
        client.close()


# --- connections --------------------------------------------------------------------------------------------------


def test_connections_are_capped(tmp_path):
    with serving(tmp_path, shards=1, gateways=1, max_connections=5) as server:
        kept: list[socket.socket] = []

        def served() -> bool:
            sock = socket.create_connection(("127.0.0.1", server.port), timeout=60)
            try:
                sock.sendall(b"GET /v0/health HTTP/1.1\r\nhost: x\r\n\r\n")
                data = sock.recv(65536)
            except OSError:  # turned away while we spoke
                data = b""
            if data.startswith(b"HTTP/1.1 200 "):
                kept.append(sock)
                return True
            sock.close()
            assert data == b"" or data.startswith(b"HTTP/1.1 503 ")
            return False

        assert [served() for _ in range(20)] == [True] * 5 + [False] * 15
        kept.pop().close()
        wait_until(served, "a place")
        for sock in kept:
            sock.close()


# --- sizes of requests and answers --------------------------------------------------------------------------------


def test_the_sizes_that_can_be_set(tmp_path):
    sizes = {"batch_records": 3, "record_bytes": 100, "body_bytes": 1000, "meta_bytes": 20, "tag_bytes": 5}
    settings = {f"max_{name}": value for name, value in sizes.items()}
    with serving(tmp_path, shards=1, gateways=1, max_node_bytes=4, max_limit=2, **settings) as server:
        http = httpx.Client(base_url=server.url, timeout=60)

        def write(*records: dict[str, Any], **more: Any) -> tuple[int, str]:
            answer = http.post("/v0/topics/t", json={"records": records, **more})
            return answer.status_code, answer.json().get("error", {}).get("code", "")

        fits = {"data": "x" * 50, "tag": "t" * 5, "node": "n" * 4, "meta": {"k": "v" * 10}}
        assert write(fits, fits, fits, node="n" * 4) == (201, "")
        assert write(*[{"data": 1}] * 4) == (400, "batch_too_large")
        assert write({"data": "x" * 99}) == (400, "record_too_large")
        assert write({"data": "x" * 98}) == (200, "")
        assert write({"data": "x" * 1000}) == (413, "payload_too_large")
        for field in ({"meta": {"k": "v" * 20}}, {"tag": "t" * 6}, {"node": "n" * 5}):
            assert write(fits | field) == (400, "invalid_request")
        assert write(fits, node="n" * 5) == (400, "invalid_request")
        for limit, given in ((1, 1), (2, 2), (3, 2), (10**6, 2), (0, 2)):
            answer = http.post("/v0/topics/t/diff", json={"limit": limit}).json()
            assert len(answer["records"]) == given
            assert not answer["caught_up"]
