"""What the engine answers and what it keeps until it may: values that pass between it, the log and its callers."""

from collections.abc import Callable
from typing import Any, NamedTuple

from topics.core.block import Block
from topics.core.config import TopicConfig
from topics.core.dedup import Duplicates, Sifted
from topics.core.events import Appended, CreatedAndAppended, Encoded, Event
from topics.core.keyruns import NewKeys
from topics.core.topic import Topic

Done = Callable[[Any], None]
Fail = Callable[[Exception], None]  # what is not a TopicsError arrives as `internal`
HasTime = Callable[[int], bool]  # whether there is, for so many records more


class Appending(NamedTuple):
    """The outcome of an append."""

    name: str
    first_seq: int
    records: int
    head_seq: int
    created: bool
    deduped: bool
    duplicates: Duplicates = ()


class Rendered(NamedTuple):
    """A large write as it was made ready elsewhere, while nothing could come in between (rendering.py)."""

    sifted: Sifted
    blocks: list[Block]
    keys: NewKeys | None  # if it has dedup keys
    encoded: Encoded | None  # if it is to be logged
    config: TopicConfig  # what the topic has, or is to have if there is none


class Pending(NamedTuple):
    """A command whose frame is not durable yet."""

    lsn: int
    topic: Topic
    event: Event | None  # None: nothing to apply, only its turn to wait for
    done: Done
    fail: Fail

    @property
    def records(self) -> int:
        """How many are to be taken in."""
        event = self.event.appended if type(self.event) is CreatedAndAppended else self.event
        return event.count if type(event) is Appended else 0
