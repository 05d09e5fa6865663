"""The shard process: one WAL, its topics' files, and the engine that serves them over RPC."""
