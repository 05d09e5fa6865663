"""W4: live subscribers. Everybody gets every record; how many deliveries a second, and how late at a quiet pace."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from loadtest import subscribers
from loadtest.appends import make_topics
from loadtest.http import Address
from loadtest.servers import ProcessorTime, address_of, nats_server, redis_server, started, topics_server
from loadtest.subscribers import Publish, Subscriber, publish_all, receive
from loadtest.together import Ready, run_together
from loadtest.workload import Aim, Bench, Contender, Sample, Workload, contender
from topics.testing.server import Server

CROWDS = (1, 10, 100, 1000)
PUBLISHERS = 4
OURS, PUBSUB, XREAD, NATS = "topics, event stream", "Redis pub/sub", "Redis XREAD BLOCK", "NATS core"
JUDGED = 100


def row(name: str, crowd: int) -> str:
    return f"{name}, {crowd}"


def contenders(bench: Bench, stack: ExitStack) -> Sequence[Contender]:
    return [
        contender(row(name, crowd), partial(_full_speed, bench, crowd, start))
        for name, start in kinds(bench, stack).items()
        for crowd in CROWDS
    ]


Join = Callable[[], Subscriber]
Start = Callable[[], tuple[Join, Callable[[], Publish], ProcessorTime | None]]


def kinds(bench: Bench, stack: ExitStack) -> dict[str, Start]:
    """What can be subscribed to: each makes something new to subscribe to and to publish on."""
    server = stack.enter_context(topics_server(bench))
    found: dict[str, Start] = {OURS: partial(_ours, bench, server)}
    if bench.tools.has("redis"):
        redis = started(stack, redis_server(bench, fsync="everysec"))
        found[PUBSUB] = partial(_pubsub, bench, redis.address)
        found[XREAD] = partial(_xread, bench, redis.address)
    if bench.tools.has("nats"):
        found[NATS] = partial(_nats, bench, started(stack, nats_server(bench)).address)
    return found


def _full_speed(bench: Bench, crowd: int, start: Start) -> Sample:
    join, publisher, times = start()
    each = max(PUBLISHERS, int(bench.sizes.live_deliveries / crowd**0.5 / 10)) // PUBLISHERS * PUBLISHERS
    began, received = run(join, publisher, crowd, each, PUBLISHERS, 0.0)
    details = times.us_per(each * crowd) if times is not None else {}
    return Sample(each * crowd / (received.ended - began), details)


def run(
    join: Join, publisher: Callable[[], Publish], crowd: int, each: int, publishers: int, rate: float
) -> tuple[float, Any]:
    def subscribe(ready: Ready) -> Any:
        return receive([join() for _ in range(crowd)], each, rate > 0, ready)

    publish: Callable[[Ready], Any] = partial(publish_all, publisher, each // publishers, rate)
    works: list[Callable[[Ready], Any]] = [subscribe, *[publish] * publishers]
    answers = run_together(works)
    return min(began for began, _ in answers[1:]), answers[0][0]


def _ours(bench: Bench, server: Server) -> Any:
    (topic,) = make_topics(bench, server, 1, "disk")
    address = address_of(server)
    return (
        partial(subscribers.by_event_stream, address, topic),
        partial(subscribers.topic_publisher, address, topic),
        ProcessorTime(server),
    )


def _pubsub(bench: Bench, address: Address) -> Any:
    channel = bench.fresh("w4")
    return (
        partial(subscribers.by_redis_channel, address, channel),
        partial(subscribers.redis_publisher, address, subscribers.channel_command(channel)),
        None,
    )


def _xread(bench: Bench, address: Address) -> Any:
    stream = bench.fresh("w4")
    return (
        partial(subscribers.by_redis_stream, address, stream),
        partial(subscribers.redis_publisher, address, subscribers.stream_command(stream)),
        None,
    )


def _nats(bench: Bench, address: Address) -> Any:
    subject = bench.fresh("w4")
    return (
        partial(subscribers.by_nats_subject, address, subject),
        partial(subscribers.nats_publisher, address, subject),
        None,
    )


WORKLOAD = Workload(
    "w4",
    "live subscribers of one topic, 4 publishers, one raw client for all",
    "deliveries/s",
    contenders,
    (Aim("100 subscribers against Redis pub/sub", row(OURS, JUDGED), 0.9, row(PUBSUB, JUDGED)),),
    note="Ours is stored and resumable; pub/sub of Redis and NATS core forget a record once it is sent. With few "
    "subscribers the publishers are the limit: they wait for each answer.",
)
