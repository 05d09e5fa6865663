"""Liveness and readiness (API §8.1, §8.2)."""

import time

import topics
from topics import errors, limits
from topics.errors import TopicsError
from topics.gateway.dispatch import Gateway, shutting_down
from topics.gateway.messages import Request, Response
from topics.gateway.routing import Route
from topics.rpc.open_calls import Reply


async def health(gateway: Gateway, request: Request) -> Response:
    """200 while the process can serve."""
    uptime_ms = max(0, int(time.time() * 1000) - gateway.started_ms)
    body = b'{"status":"ok","version":"%b","uptime_ms":%d' % (topics.__version__.encode(), uptime_ms)
    return Response(body, 200, {})


async def ready(gateway: Gateway, request: Request) -> Response:
    """503 until every shard has been ready once; from then on a lost shard only degrades."""
    if gateway.draining or gateway.instance_draining():
        raise shutting_down()
    answers = await gateway.shards.call_all("health", {}, limits.READY_DEADLINE_MS)
    heads = {shard: answer.head for shard, answer in answers.items() if isinstance(answer, Reply)}
    down = [shard for shard in answers if shard not in heads or not heads[shard]["ready"]]
    if not gateway.was_ready(now_ready=not down):
        progress = sum(head["replay_progress"] for head in heads.values()) / len(answers)
        raise TopicsError(
            errors.NOT_READY,
            "the server is replaying its log",
            {"replay_progress": round(progress, 3), "retry_after_ms": 1000},
        )
    count = sum(head["topics"] for shard, head in heads.items() if shard not in down) + gateway.told_by(down, "topics")
    if not down:
        return Response(b'{"status":"ready","wal_replay_complete":true,"topics":%d' % count, 200, {})
    shards = b",".join(b"%d" % shard for shard in down)
    return Response(
        b'{"status":"degraded","wal_replay_complete":false,"topics":%d,"shards_down":[%b]' % (count, shards), 200, {}
    )


ROUTES = (
    Route("GET", "/v0/health", health, "health", hot=True, probe=True),
    Route("GET", "/healthz", health, "health", hot=True, probe=True),
    Route("GET", "/v0/ready", ready, "ready", hot=True, probe=True),
    Route("GET", "/readyz", ready, "ready", hot=True, probe=True),
)
