"""Where one live reader stands in one topic."""

from enum import Enum
from typing import TYPE_CHECKING

from topics.core.requests import quoted

if TYPE_CHECKING:
    from topics.gateway.feeds import Feed
    from topics.gateway.watcher import Watcher


class Phase(Enum):
    BEHIND = 0  # reads for itself until it is at the head
    LIVE = 1  # gets what the feed gets
    HELD = 2  # waits for credits
    OVER = 3  # the topic is gone, or nobody wants it any more


class Place:
    __slots__ = (
        "credits",
        "doubt",
        "epoch",
        "feed",
        "head_seq",
        "key",
        "late",
        "next_notice",
        "not_before",
        "pause_ms",
        "phase",
        "seq",
        "topic",
        "watcher",
        "woken",
    )

    def __init__(self, watcher: "Watcher", topic: str, seq: int, epoch: int) -> None:
        self.watcher = watcher
        self.topic = topic
        self.key = quoted(topic) + b":"
        self.seq = seq  # everything up to here was sent, or is not for this reader
        self.epoch = epoch
        self.head_seq = seq
        self.phase = Phase.BEHIND
        self.feed: Feed | None = None
        self.late = True  # just connected, or stalled for long: a loss it finds now is `from_seq_too_old`
        self.not_before = 0.0  # the topic's shard is down: look again then
        self.pause_ms = 0
        self.next_notice = 0.0  # the client was told why nothing comes: not again before
        self.credits: int | None = None  # records that the client will still take; none: any number
        self.woken = False  # with credits: it reads what the feed told it of
        self.doubt: int | None = None  # `seq` is what a client says; where to begin if that was never there

    @property
    def pair(self) -> bytes:
        """For a composite cursor."""
        return self.key + b"%d" % self.seq
