"""topics: a persistent event engine with a JSON-first HTTP API, on one machine."""

__version__ = "0.1.0"
