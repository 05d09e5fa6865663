"""Books against a plain dict, with crashes at every moment."""

import random
from typing import Any

import pytest

from topics.limits import Limits
from topics.shards import hidden
from topics.shards.book import Book
from topics.shards.recovery import recover
from topics.testing.fake_clock import FakeClock
from topics.testing.faulty_files import FaultyFiles

NAME = "$book"


def refused(error: Exception) -> None:
    raise error


class Shelf:
    """A book on a faulty disk, and what every prefix of its changes adds up to."""

    def __init__(self) -> None:
        self.disk = FaultyFiles()
        self.clock = FakeClock()
        self.history: list[dict[str, bytes]] = [{}]
        self.written = self.acked = 0  # changes that a killed process, that any crash must not lose
        self.open()

    def open(self) -> None:
        bounds = Limits(segment_events=8, segment_bytes=4096)
        self.store = recover(self.disk, self.clock, bounds, wal_file_bytes=2048)
        self.book = Book(self.store, NAME)
        self.found = dict(self.book.load())

    def put(self, entries: dict[str, bytes]) -> None:
        self.book.put_all(entries, *self._enter({**self.history[-1], **entries}))

    def remove(self, *keys: str) -> None:
        left = {key: value for key, value in self.history[-1].items() if key not in keys}
        if left != self.history[-1]:
            self.book.remove_all(keys, *self._enter(left))

    def _enter(self, outcome: dict[str, bytes]) -> Any:
        change = len(self.history)
        self.history.append(outcome)

        def done(_: None) -> None:
            assert self.acked == change - 1, "acked out of order"
            self.acked = change

        return done, refused

    def write(self) -> None:
        if frames := self.store.engine.log.take():
            self.store.write_group(frames)
            self.written = len(self.history) - 1

    def commit(self) -> None:
        self.write()
        self.store.engine.durable(self.store.sync_log())
        assert self.acked == len(self.history) - 1

    def checkpoint(self) -> None:
        self.commit()
        self.store.checkpoint()

    def forget_blocks(self) -> None:
        """Read from files, not from what is still resident."""
        for chunk in self.topic.chunks:
            if chunk.file is not None:
                chunk.block = None

    @property
    def topic(self) -> Any:
        return hidden.open(self.store.engine, NAME)

    def crash(self, seed: int, *, power_loss: bool) -> None:
        least = self.acked if power_loss else max(self.acked, self.written)
        self.disk = self.disk.crash(seed, power_loss=power_loss)
        self.open()
        allowed = self.history[least:]
        assert self.found in allowed, (self.found, allowed)
        self.history = [self.found]
        self.written = self.acked = 0


@pytest.mark.parametrize("seed", range(60))
def test_a_book_is_a_dict_that_survives(seed: int) -> None:
    rng = random.Random(seed)
    shelf = Shelf()
    keys = ["a", "b", "ü\n\"'", "", "e" * 300, "f"]

    def value() -> bytes:
        return rng.randbytes(rng.choice((0, 1, 40, 40, 5000)))

    for _ in range(80):
        step = rng.random()
        if step < 0.35:
            shelf.put({rng.choice(keys): value()})
        elif step < 0.45:
            shelf.put({key: value() for key in rng.sample(keys, 3)})
        elif step < 0.65:
            shelf.remove(rng.choice(keys))
        elif step < 0.68:
            shelf.remove(*rng.sample(keys, 3))
        elif step < 0.76:
            shelf.write()
        elif step < 0.86:
            shelf.commit()
        elif step < 0.93:
            shelf.checkpoint()
        elif step < 0.95:
            shelf.forget_blocks()
        else:
            shelf.crash(rng.randrange(2**16), power_loss=rng.random() < 0.7)
    shelf.commit()
    shelf.crash(seed, power_loss=True)


async def test_a_value_is_read_back_from_the_queue_from_memory_and_from_disk() -> None:
    shelf = Shelf()
    assert await shelf.book.read("a") is None
    shelf.put({"a": b"old", "b": b"other"})
    assert await shelf.book.read("a") == b"old"
    shelf.commit()
    assert await shelf.book.read("a") == b"old"
    shelf.put({"a": b"new" * 3000})
    assert await shelf.book.read("a") == b"new" * 3000
    shelf.checkpoint()
    shelf.forget_blocks()
    assert [await shelf.book.read(key) for key in "ab"] == [b"new" * 3000, b"other"]
    shelf.remove("a")
    assert await shelf.book.read("a") is None
    assert "a" not in shelf.book


def test_what_a_crash_left_of_a_change_is_cleared_up_by_the_next() -> None:
    shelf = Shelf()
    shelf.put({"a": b"1"})
    shelf.commit()
    shelf.put({"a": b"2"})
    frames = shelf.store.engine.log.take()
    assert len(frames) == 2
    shelf.store.commit(frames[:1])  # the new value, without the delete of the old one
    shelf.crash(1, power_loss=True)
    assert shelf.found == {"a": b"2"}
    assert shelf.topic.count == 2
    shelf.remove("a")
    shelf.commit()
    assert shelf.topic.count == 0
    shelf.crash(2, power_loss=True)
    assert shelf.found == {}


def test_ten_thousand_entries_with_a_checkpoint_in_between() -> None:
    shelf = Shelf()
    entries = {f"key-{n}": b"%d" % n * 5 for n in range(10_000)}
    for n, (key, value) in enumerate(entries.items()):
        shelf.book.put(key, value, lambda _: None, refused)
        if n == 6000:
            shelf.store.checkpoint()
    shelf.store.commit_all()
    shelf.book.remove_all([f"key-{n}" for n in range(0, 10_000, 2)], lambda _: None, refused)
    shelf.store.commit_all()
    shelf.disk = shelf.disk.crash(3)
    shelf.open()
    assert shelf.found == {key: value for n, (key, value) in enumerate(entries.items()) if n % 2}
    assert len(shelf.book) == shelf.topic.count == 5000


def test_damaged_entries_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    shelf = Shelf()
    shelf.put({"a": b"1"})
    shelf.checkpoint()
    shelf.put({"b": b"2"})
    shelf.commit()
    chunk = shelf.topic.chunks[0]
    file = shelf.disk.open(chunk.file.path)
    file.write_at(chunk.offset + 80, [b"\xff\xff\xff\xff"])
    file.sync()
    shelf.disk = shelf.disk.crash(4)
    shelf.open()
    assert shelf.found == {"b": b"2"}
    assert "are lost" in caplog.text
