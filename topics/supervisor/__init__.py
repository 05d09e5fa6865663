"""The supervisor: starts, watches and restarts shard and gateway processes."""
