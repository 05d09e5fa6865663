"""Spark jobs that read from and write to topics over HTTP."""
