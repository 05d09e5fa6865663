"""What left its topic many at once: chunks, when millions of records expired, were evicted or deleted in one event, and
the tag index of records that went so or that a checkpoint has stored.

They are out of the log at once, but giving their files back, or the memory of an index, takes a step each. Until it is
done the files stay.

So it is with keys that are forgotten: nobody finds them any more, and their memory is given back a few at a time.
"""

from collections.abc import Iterator

from topics.core.topic import Topic


class Graves:
    def __init__(self) -> None:
        self._topics: set[Topic] = set()

    def note(self, topic: Topic) -> None:
        if topic.buried or topic.faded or (topic.keys is not None and topic.keys.untidy):
            self._topics.add(topic)

    def bury(self) -> Iterator[None]:
        """In small steps, in the loop."""
        while self._topics:
            topic = self._topics.pop()
            while topic.bury():
                yield
            yield
