"""How what a driver does can end: an answer, or the end of the process it drives."""

from typing import Any


class Poisoned(Exception):
    """The log failed: this process takes no more writes and is to be restarted."""


class FailedStart(Exception):
    """A recovery could not read or write what it had to: this process ends."""


class Answer:
    """What a command was answered, as soon as it is."""

    def __init__(self) -> None:
        self.result: Any = None
        self.error: Exception | None = None
        self.given = False

    def done(self, result: Any) -> None:
        assert not self.given, "answered twice"
        self.result, self.given = result, True

    def fail(self, error: Exception) -> None:
        assert not self.given, "answered twice"
        self.error, self.given = error, True
