"""What a checkpoint holds of a topic between its steps: see checkpoint.py."""

import msgspec

from topics.core.block import Block
from topics.core.chunk import Chunk, DataFile
from topics.core.keyruns import Run
from topics.core.topic import Topic
from topics.shards.files import File


class Source(msgspec.Struct):
    """A chunk at the instant of capture."""

    chunk: Chunk
    block: Block | None
    dead: int
    handle: File | None  # where to read the block if it is not resident


class Output(msgspec.Struct):
    """A stored block, as the chunk that is to take the place of captured ones; `dead` is what its file knows of."""

    chunk: Chunk
    dead: int
    info: DataFile


class Capture(msgspec.Struct):
    """One topic's share of a checkpoint."""

    topic: Topic
    entry: bytes
    sources: list[Source]
    last_seq: int
    segment: bool  # its sources make up at least one segment
    packs_from: int  # as the topic's, once this is installed
    keys: list[Run]  # idempotency and dedup keys that no checkpoint has stored yet
    flips: list[tuple[Chunk, int]]  # stored chunks whose delete flags are behind, with what was dead in them
    outputs: list[Output] = []
