"""The names of topics, routers and consumer groups: which are allowed, and the refusal that states the rule.

A name is compared byte for byte; it is never folded, trimmed or normalised. Names are plain ASCII, so characters and
bytes are the same count.
"""

import re

from topics.errors import invalid
from topics.limits import NAME_MAX

TOPIC_PATTERN = f"[A-Za-z0-9][A-Za-z0-9._:-]{{0,{NAME_MAX - 1}}}"
ROUTER_PATTERN = f"[A-Za-z0-9][A-Za-z0-9._:>-]{{0,{NAME_MAX - 1}}}"
_TOPIC = re.compile(TOPIC_PATTERN)
_ROUTER = re.compile(ROUTER_PATTERN)

TOPIC_RULE = f"1 to {NAME_MAX} characters of A-Z a-z 0-9 . _ : - and starts with a letter or a digit"
HIDDEN_MARK = "$"  # begins the names of the server's own topics; no other name can begin with it
ROUTER_RULE = f"1 to {NAME_MAX} characters of A-Z a-z 0-9 . _ : - > and starts with a letter or a digit"


def is_topic_name(name: str) -> bool:
    return _TOPIC.fullmatch(name) is not None


def is_hidden_name(name: str) -> bool:
    """Whether this is a topic that nobody outside its shard sees (topics/shards/hidden.py)."""
    return name.startswith(HIDDEN_MARK)


def check_topic_name(name: str) -> str:
    """The name itself, or `invalid_request`. The refused name is not echoed: it may be long or not even text."""
    if not is_topic_name(name):
        raise invalid(f"a topic name has {TOPIC_RULE}", field="topic")
    return name


def check_router_name(name: str) -> str:
    """As for topics, with `>` allowed, so that `orders->audit` is a name."""
    if _ROUTER.fullmatch(name) is None:
        raise invalid(f"a router name has {ROUTER_RULE}", field="router")
    return name


def check_group_name(name: str) -> str:
    """As for topics."""
    if not is_topic_name(name):
        raise invalid(f"a group name has {TOPIC_RULE}", field="group")
    return name
