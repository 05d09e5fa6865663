"""Where Spark finds the format `topics` without being told: it imports modules whose names begin with `pyspark_`."""

from spark_integration.source import TopicsSource as DefaultSource

__all__ = ["DefaultSource"]
