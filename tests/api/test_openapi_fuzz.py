"""Requests made up from the document, good and bad ones: nothing breaks, and every answer is one that is documented."""

from collections.abc import Iterator

import httpx
import hypothesis
import pytest
import schemathesis
from hypothesis import strategies
from schemathesis import GenerationMode
from schemathesis.specs.openapi import checks

from topics.gateway.openapi.document import document, path_of
from topics.gateway.routing import Route
from topics.gateway.table import ROUTES
from topics.limits import Limits
from topics.testing.server import Server

KEY = "fuzz"
EXAMPLES = 12  # of each route in each mode; some 30 s in all
NAMES = {
    "topic": ["log", "jobs", "absent"],
    "group": ["g", "absent"],
    "router": ["log->copy", "absent"],
    "wid": ["wid_" + "A" * 22],
}
CHECKS = [
    schemathesis.checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]
# A stream that opens does not end by itself: those are opened in test_openapi.py.
TABLE = [route for route in ROUTES.table if route.needs not in ("watch.stream", "queue.work", "ws.open")]


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("fuzz"), api_keys=KEY) as started:
        yield started.start().wait_ready()
        assert not [line for line in started.lines() if line.get("level") in ("ERROR", "CRITICAL")]


@pytest.fixture(autouse=True)
def names(server) -> None:
    """What requests find, whatever the ones before them did."""
    with httpx.Client(base_url=server.url, headers={"authorization": f"Bearer {KEY}"}) as http:
        for name in ("log", "jobs", "copy"):
            assert http.delete(f"/v0/topics/{name}").status_code == 200
        assert http.put("/v0/topics/log", json={}).status_code == 201
        assert http.put("/v0/topics/jobs", json={"type": "queue"}).status_code == 201
        assert http.put("/v0/topics/log/groups/g", json={}).status_code == 201
        assert http.delete("/v0/routers/log->copy").status_code == 200
        assert http.put("/v0/routers/log->copy", json={"source": "log", "dest": "copy"}).status_code == 201


@pytest.fixture(scope="module")
def api():
    return schemathesis.openapi.from_dict(dict(document(ROUTES.table, Limits())))


def title(route: Route) -> str:
    return f"{route.method} {route.template}"


@pytest.mark.slow
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=lambda mode: mode.value)
@pytest.mark.parametrize("route", TABLE, ids=title)
def test_answers_are_documented(server, api, route, mode):
    operation = api[path_of(route)][route.method]
    if mode is GenerationMode.NEGATIVE and not (operation.body or operation.query or operation.path_parameters):
        pytest.skip("nothing of it can be wrong")
    statuses: set[int] = set()
    headers = {"authorization": f"Bearer {KEY}"}

    @hypothesis.seed(20240501)
    @hypothesis.settings(
        max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(hypothesis.HealthCheck)
    )
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode), names=strategies.data())
    def one(case, names):
        if mode is GenerationMode.POSITIVE:
            for name in case.path_parameters or {}:
                case.path_parameters[name] = names.draw(strategies.sampled_from(NAMES[name]))
            if isinstance(case.body, dict) and isinstance(case.body.get("wait_ms"), int):
                case.body["wait_ms"] = min(case.body["wait_ms"], 20)
            if isinstance(case.body, dict) and isinstance(case.body.get("seqs"), list):
                case.body["seqs"] = [int(seq) for seq in case.body["seqs"]]  # 1.0 is an integer to a schema, not to us
        response = case.call_and_validate(base_url=server.url, headers=headers, checks=CHECKS, timeout=60)
        statuses.add(response.status_code)

    one()
    assert mode is GenerationMode.NEGATIVE or statuses & {200, 201}, statuses  # not all of it is refused
