"""The HTTP gateway: authenticates, hands over to the owning shard, answers."""
