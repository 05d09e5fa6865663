"""Effective priority: which of the waiting topics is served first. It never touches order, retention or visibility.

    effective = manual priority, or else the recency of the last read   (-1000..1000, or 0..500)
              + 100 for each second waited, at most 1000                (so that nothing starves)

Computed on demand, never stored, in integers only: 2^-x comes from a table of 64 steps for each halving, with linear
interpolation between steps.
"""

import math

from topics.limits import PRIORITY_MAX

AUTO_MAX = 500  # a topic read just now ranks like one with priority 500
HALF_LIFE_MS = 30_000
AUTO_FLOOR_MS = 300_000  # not read for this long: the recency term is 0
AGE_PER_S = 100
AGE_CAP_MS = 10_000

_STEPS = 64
_ONE_BITS = 32
_ONE = 1 << _ONE_BITS
# 2^(-step/64) in fixed point. The last entry is exactly a half: the curve has no jump from one halving to the next.
_DECAY = tuple(round(_ONE * math.exp2(-step / _STEPS)) for step in range(_STEPS + 1))

assert _DECAY[0] == _ONE
assert _DECAY[_STEPS] == _ONE // 2


def auto_recency(now_ms: int, last_consumed_ms: int | None) -> int:
    """500 for a topic consumed now, half of it for each 30 s since. A clock that went back counts as now."""
    if last_consumed_ms is None:
        return 0
    idle_ms = max(now_ms - last_consumed_ms, 0)
    if idle_ms >= AUTO_FLOOR_MS:
        return 0
    halvings, rest_ms = divmod(idle_ms, HALF_LIFE_MS)
    step, part = divmod(rest_ms * _STEPS, HALF_LIFE_MS)
    decay = _DECAY[step] - (_DECAY[step] - _DECAY[step + 1]) * part // HALF_LIFE_MS
    shift = _ONE_BITS + halvings
    return (AUTO_MAX * decay + (1 << (shift - 1))) >> shift


def age_boost(now_ms: int, enqueued_ms: int | None) -> int:
    """What waiting adds; nothing for a topic that does not wait."""
    if enqueued_ms is None:
        return 0
    waited_ms = min(max(now_ms - enqueued_ms, 0), AGE_CAP_MS)
    return waited_ms * AGE_PER_S // 1000


def effective(
    config_priority: int | None,
    auto_priority: bool,
    last_consumed_ms: int | None,
    now_ms: int,
    enqueued_ms: int | None = None,
) -> int:
    """A manual priority overrides the recency term; with neither the base is 0."""
    if config_priority is not None:
        base = min(max(config_priority, -PRIORITY_MAX), PRIORITY_MAX)
    else:
        base = auto_recency(now_ms, last_consumed_ms) if auto_priority else 0
    return base + age_boost(now_ms, enqueued_ms)
