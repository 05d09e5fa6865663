"""All routes of the API: the one table from which the hot path and the Quart app are made."""

from topics.gateway import (
    docs_routes,
    group_routes,
    list_route,
    metrics,
    probes,
    queue_routes,
    router_routes,
    topic_routes,
    watch_routes,
)
from topics.gateway.routing import Routes

ROUTES = Routes(
    (
        *topic_routes.ROUTES,
        *queue_routes.ROUTES,
        *group_routes.ROUTES,
        *router_routes.ROUTES,
        *list_route.ROUTES,
        *probes.ROUTES,
        *metrics.ROUTES,
        *watch_routes.ROUTES,
        *docs_routes.ROUTES,
    )
)
