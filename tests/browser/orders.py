"""The topic `orders`: writing to it, and what is really in it."""

import threading
from contextlib import suppress
from itertools import count

import httpx

from topics.testing.server import DEADLINE_S

NAME = "orders"
TOPIC = f"/v0/topics/{NAME}"


class Writer(threading.Thread):
    """Appends numbers one by one, for as long as the server answers."""

    def __init__(self, url):
        super().__init__()
        self._url = url
        self.start()

    def run(self):
        with suppress(httpx.HTTPError):
            for number in count():
                append(self._url, number)


def append(url, value):
    httpx.post(url + TOPIC, json={"records": [{"data": value}]}, timeout=DEADLINE_S).raise_for_status()


def truth(url):
    """Everything in the topic."""
    found, answer = [], {"next_from_seq": 0, "caught_up": False}
    while not answer["caught_up"]:
        wanted = {"from_seq": answer["next_from_seq"], "limit": 1000}
        answer = httpx.post(f"{url}{TOPIC}/diff", json=wanted, timeout=DEADLINE_S).json()
        assert answer["tombstone"] is None
        found += [[record["$seq"], record["data"]] for record in answer["records"]]
    return found


def make_topic(url):
    httpx.put(url + TOPIC, json={"durability": "fsync"}, timeout=DEADLINE_S).raise_for_status()


def watch(url):
    """A new session from the beginning on; the path of its stream."""
    answer = httpx.post(f"{url}/v0/watch", json={"topics": {NAME: {}}}, timeout=DEADLINE_S)
    return answer.raise_for_status().json()["stream_url"]
