"""Clients that follow topics live, whatever happens to the server, and writers that never write twice."""

import base64
import json
import threading
from collections import defaultdict
from typing import Any

import httpx

from tests.api.events import EventStream
from tests.system.client import Client
from topics.testing.server import Server, wait_until


class Follower:
    """One session, taken up again with the last id whenever its stream ends. What it saw, by topic."""

    def __init__(self, server: Server, crew: Any, topics: dict[str, Any], **options: Any) -> None:
        self.server = server
        self.crew = crew
        self.connections = 0
        self.last_id = ""
        self.seen: dict[str, list[tuple[int, Any]]] = defaultdict(list)
        self.gaps: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self._stream: EventStream | None = None
        body = {"topics": topics, "heartbeat_ms": 1000, **options}
        self.wid = httpx.post(f"{server.url}/v0/watch", json=body).json()["wid"]
        crew.start(self._run)

    def head(self, topic: str) -> int:
        """Everything up to here was seen, or told to be lost."""
        last: int = self.seen[topic][-1][0] if self.seen[topic] else 0
        told: list[int] = [gap["gap_to"] for gap in self.gaps[topic]]
        return max([last, *told])

    def drop(self) -> None:
        """Lose the connection."""
        if self._stream is not None:
            self._stream.close()

    def _run(self) -> None:
        while not self.crew.stopping.is_set():
            try:
                stream = self._connect()
            except (OSError, EOFError):
                self.crew.stopping.wait(0.05)
                continue
            if stream.status != 200:
                assert stream.status == 503, (stream.status, stream.body())
                self.crew.stopping.wait(0.05)
                continue
            self.connections += 1
            self._stream = stream
            self._follow(stream)
            stream.close()

    def _connect(self) -> EventStream:
        headers = {"last-event-id": self.last_id} if self.last_id else {}
        return EventStream(("127.0.0.1", self.server.port), f"/v0/watch/{self.wid}", headers)

    def _follow(self, stream: EventStream) -> None:
        for event in stream:
            if event.name == "record":
                self._take(event.data)
            elif event.name == "tombstone":
                self._lose(event.data)
            elif event.name == "error":
                raise AssertionError(event)
            if event.id is not None:
                self.last_id = event.id
                assert self._positions()[event.data["topic"]] >= self.head(event.data["topic"])
            if self.crew.stopping.is_set():
                return

    def _take(self, frame: dict[str, Any]) -> None:
        topic, head = frame["topic"], self.head(frame["topic"])
        seqs = [record["$seq"] for record in frame["records"]]
        assert seqs == sorted(set(seqs)), ("out of order", frame)
        assert not seqs or seqs[0] > head, ("seen twice", topic, seqs[0], head, self.seen[topic][-3:])
        self.seen[topic] += [(record["$seq"], record["data"]) for record in frame["records"]]

    def _lose(self, gap: dict[str, Any]) -> None:
        assert self.head(gap["topic"]) < gap["gap_from"] <= gap["gap_to"], ("not behind what was seen", gap)
        self.gaps[gap["topic"]].append(gap)

    def _positions(self) -> dict[str, int]:
        return dict(json.loads(base64.urlsafe_b64decode(self.last_id + "=" * (-len(self.last_id) % 4))))


class Writer:
    """Appends to topics until told to stop; a write without an answer is sent again with its key."""

    def __init__(self, server: Server, crew: Any, topics: list[str], name: str) -> None:
        self.server = server
        self.acked = 0
        self.stopping = threading.Event()
        self.stopped = threading.Event()
        self._crew = crew
        self._topics = topics
        self._name = name
        crew.start(self._run)

    def stop(self) -> None:
        self.stopping.set()
        assert self.stopped.wait(60)

    def _run(self) -> None:
        with Client(self.server) as client:
            number = 0
            while not self.stopping.is_set() and not self._crew.stopping.is_set():
                number += 1
                topic, key = self._topics[number % len(self._topics)], f"{self._name}-{number}"
                records = [{"data": [key, index]} for index in range(1 + number % 3)]
                client.append(topic, {"records": records, "idempotency_key": key})
                self.acked += 1
        self.stopped.set()

    def wait_progress(self, count: int = 30) -> None:
        target = self.acked + count

        def done() -> bool:
            self._crew.check()
            return self.acked >= target

        wait_until(done, f"{count} writes")
