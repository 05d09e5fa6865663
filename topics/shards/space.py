"""How much of the disk is free for new data. What was admitted and has not taken its room yet counts as taken, so that
no log write finds the disk full that admission called free.

A write takes its room twice: when its frame is written, and when a checkpoint stores it. Both are told from what stands
in memory, so nothing has to be given back, whatever becomes of a write. How much a checkpoint takes is an estimate: one
that finds too little is put off, and what is stored already is written anew only where there is plenty. Each shard
knows its own only.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from topics.shards.store import Store


def available(store: "Store") -> int:
    """Bytes, below 0 if more was admitted than there is. In the loop.

    Threads write meanwhile. What is to come is looked at before what is free, so that nothing is missed in between.
    """
    needed = _log_needs(store) + _checkpoints_need(store)
    return store.files.free_bytes() - needed


def _log_needs(store: "Store") -> int:
    """For frames that are not written yet. The log file has room set aside; a group that does not fit into what is left
    of it may begin another one, and leave that room unused."""
    waiting = store.engine.log.frame_bytes - store.writer.bytes_total
    return waiting if waiting > store.writer.room_left else 0


def _checkpoints_need(store: "Store") -> int:
    """For what only the log has: the next checkpoint's share, and what the one under way has not written yet."""
    log, under_way = store.engine.log, store.under_way
    if under_way is None:
        return stored_size(log.unstored)
    written = sum(info.size for info in under_way.commit.added)
    return max(0, under_way.size - written) + stored_size(log.bytes_since_checkpoint)


def stored_size(log_bytes: int) -> int:
    """What is logged takes about as much in data files; tiny records with tags of their own take half as much again."""
    return log_bytes * 3 // 2
