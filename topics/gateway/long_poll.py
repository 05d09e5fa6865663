"""A call that may wait at its shard for something to come."""

from collections.abc import Mapping
from typing import Any

import trio

from topics.gateway.dispatch import Gateway
from topics.rpc.open_calls import Reply


async def long_poll(
    gateway: Gateway, topic: str, method: str, head: Mapping[str, Any], body: bytes, deadline_ms: int
) -> Reply:
    """Wait at the shard. A drain ends the wait: then the client gets what there is now."""
    with trio.CancelScope() as scope:
        gateway.polls.add(scope)
        try:
            return await gateway.shards.call(topic, method, head, body, deadline_ms)
        finally:
            gateway.polls.discard(scope)
    return await gateway.shards.call(topic, method, {**head, "wait": False}, body)
