"""Which jobs of a queue are on which stream: a stream is fed until it holds as many as it may."""

from collections.abc import Iterable


class Holders:
    __slots__ = ("_held", "freed")

    def __init__(self) -> None:
        self._held: dict[int, set[int]] = {}  # seqs by stream
        self.freed: set[int] = set()  # streams that hold less than before; who feeds them takes them out

    def open(self, stream: int) -> None:
        self._held[stream] = set()

    def close(self, stream: int) -> None:
        self._held.pop(stream, None)
        self.freed.discard(stream)

    def is_open(self, stream: int) -> bool:
        return stream in self._held

    def add(self, stream: int, seq: int) -> None:
        if stream in self._held:
            self._held[stream].add(seq)

    def add_all(self, stream: int, seqs: Iterable[int]) -> None:
        if stream in self._held:
            self._held[stream].update(seqs)

    def drop(self, stream: int, seq: int) -> None:
        if stream in self._held:
            self._held[stream].discard(seq)
            self.freed.add(stream)

    def count(self, stream: int) -> int:
        return len(self._held.get(stream, ()))

    def seqs(self, stream: int) -> list[int]:
        return sorted(self._held.get(stream, ()))
