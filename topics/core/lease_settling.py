"""Bringing the leases of a queue up to now, before anybody is given a job or told a number.

A call does that several times: when it comes, when it is answered, when it counts. Nothing has become due in between if
it is the same millisecond, and none of its jobs has come or gone, so only the first time costs something.
"""

from topics.core.leases import Leases
from topics.core.line import first_job
from topics.core.topic import Topic


def bring_up(topic: Topic, leases: Leases, now: int) -> bool:
    """Let what is due by now happen, a step of it; whether that was all."""
    moment = (now, topic.count, topic.next_seq)
    if leases.settled == moment and topic.derived is None:  # copies may come back while others go
        return True
    is_all = leases.settle(first_job(topic), now)
    leases.settled = moment if is_all else None
    return is_all
