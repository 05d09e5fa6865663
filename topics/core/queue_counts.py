"""How many jobs of a queue are ready, leased, still to come, and dead."""

from typing import NamedTuple

from topics.core.lease_settling import bring_up
from topics.core.line import jobs_in
from topics.core.topic import Topic


class Counts(NamedTuple):
    """Jobs of a queue."""

    ready: int
    in_flight: int
    dead_lettered: int  # so far
    scheduled: int


def counts(topic: Topic, now: int) -> Counts:
    """As of now if the queue is up to now, or a step away; else a little of what is due counts as before."""
    leases = topic.leases
    if leases is None or (topic.removing and not topic.published):  # gone: its leases go with it
        return Counts(topic.count, 0, 0, 0)
    bring_up(topic, leases, now)
    ready = min(topic.count, leases.ready(jobs_in(topic)))  # copies that a crash took cannot be claimed yet
    return Counts(ready, leases.in_flight, leases.dead_lettered, leases.scheduled)
