"""The other shards of the instance, for what goes from one to another: copies of records."""

from collections.abc import Mapping, Sequence

from topics.ids import slot_of
from topics.rpc.peer import Peer


class Peers:
    """`slots[slot_of(name)]` is the shard that owns a name. Without slots a shard is on its own and owns every name."""

    def __init__(self, index: int = 0, slots: Sequence[int] = (), others: Mapping[int, Peer] | None = None) -> None:
        self._index = index
        self._slots = slots
        self._others = others or {}

    def owner_of(self, name: str) -> Peer | None:
        """The shard that owns a topic; None if it is this one."""
        owner = self._slots[slot_of(name)] if self._slots else self._index
        return None if owner == self._index else self._others[owner]
