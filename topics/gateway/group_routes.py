"""Consumer groups: put, state, list, remove, fetch, ack, seek.

Bodies go to the topic's shard untouched, and its answers come back as they are.
"""

from typing import Any

from topics import limits
from topics.core.names import check_group_name, check_topic_name
from topics.gateway.dispatch import Gateway
from topics.gateway.messages import Request, Response
from topics.gateway.questions import Ask, Question, answer_of, asking, asking_route
from topics.gateway.routing import Handle, Route


def _head(request: Request) -> dict[str, Any]:
    return {"topic": check_topic_name(request.name), "group": check_group_name(request.group)}


def fetch(request: Request) -> Question:
    return Question("group.fetch", _head(request), wait_ms_max=limits.DIFF_WAIT_MS_MAX)


def _with_body(method: str) -> Ask:
    return lambda request: Question(method, _head(request))


def _without_body(method: str) -> Handle:
    async def handle(gateway: Gateway, request: Request) -> Response:
        return answer_of(await gateway.shards.call(request.name, method, _head(request)))

    return handle


async def list_groups(gateway: Gateway, request: Request) -> Response:
    name = check_topic_name(request.name)
    return answer_of(await gateway.shards.call(name, "group.list", {"topic": name}))


GROUP = "/v0/topics/:topic/groups/:group"
ROUTES = (
    asking_route("POST", f"{GROUP}/fetch", fetch, "group.fetch"),
    asking_route("POST", f"{GROUP}/ack", _with_body("group.ack"), "group.ack"),
    asking_route("POST", f"{GROUP}/seek", _with_body("group.seek"), "group.seek"),
    Route("PUT", GROUP, asking(_with_body("group.put")), "group.put"),
    Route("GET", GROUP, _without_body("group.state"), "group.state"),
    Route("DELETE", GROUP, _without_body("group.remove"), "group.remove"),
    Route("GET", "/v0/topics/:topic/groups", list_groups, "group.list"),
)
