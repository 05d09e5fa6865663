"""Numbers out of numbers: percentiles, medians, spread."""

import math
from collections.abc import Sequence
from statistics import median


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of all values does not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * share) - 1)]


def spread(values: Sequence[float]) -> float:
    """How far the extremes lie apart, as a share of the median: 0.1 is ±5 % or so."""
    middle = median(values)
    return (max(values) - min(values)) / middle if middle else 0.0


def latency_ms(seconds: Sequence[float]) -> dict[str, float]:
    """p50, p99 and the maximum of latencies in seconds, as milliseconds."""
    if not seconds:
        raise ValueError("no request was answered")
    shares = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    return {name: percentile(seconds, share) * 1000 for name, share in shares.items()}
