"""Where the salt of message ids comes from (core/ids.py): drawn once, when a topic's ids are turned on.

It goes to the log with the configuration, so a replay has the same one. Turned off and on again it stays.
"""

import os

import msgspec

from topics.core import state
from topics.core.config import TopicConfig, intern
from topics.core.ids import SALT_BITS
from topics.core.requests import Append
from topics.core.topic import SEQ_BASE


def with_ids(config: TopicConfig, before: TopicConfig | None, next_seq: int) -> TopicConfig:
    """The configuration with what its ids need, if they are turned on by it: records from `next_seq` on have one."""
    if not config.message_ids or (before is not None and before.message_ids):
        return config
    salt = config.id_salt or _draw()
    return intern(msgspec.structs.replace(config, id_salt=salt, ids_from=next_seq))


def config_of_new(name: str, request: Append) -> TopicConfig:
    """The configuration a write gives the topic it creates; refuses if the write may not create it."""
    return with_ids(state.config_of_new(name, request), None, SEQ_BASE)


def _draw() -> int:
    return max(1, int.from_bytes(os.urandom(4), "little") >> (32 - SALT_BITS))
