"""What the gateways and the supervisor have on the board, as metrics: answers by operation, connections, restarts."""

from collections.abc import Iterator

from topics.board import OP_BOUNDS_S, OP_CELLS, OP_CLASSES, OP_SUM, OPERATIONS, Board
from topics.gateway.dispatch import Gateway
from topics.gateway.exposition import Family

DURATION = "topics_http_request_duration_seconds"
RESPONSES = "topics_http_responses_total"
CLASSES = ("1xx", "2xx", "3xx", "4xx", "5xx")


def http_families(gateway: Gateway) -> Iterator[Family]:
    """Of all gateways together. Only operations that are routes, whether they were used or not."""
    cells = _times(gateway)
    served = {route.needs for route in gateway.routes.table}
    duration = Family(DURATION, "histogram", "Time from a request's head to its answer, or the begin of a stream.")
    responses = Family(RESPONSES, "counter", "Answers by operation and class of status.")
    for n, operation in enumerate(OPERATIONS):
        if operation in served:
            row = cells[n * OP_CELLS : (n + 1) * OP_CELLS]
            _add_histogram(duration, operation, row)
            for kind, count in zip(CLASSES, row[OP_CLASSES:], strict=False):
                if kind not in ("1xx", "3xx") or count:
                    responses.add(count, op=operation, **{"class": kind})
    yield duration
    yield responses


def _times(gateway: Gateway) -> list[int]:
    if gateway.board is None:
        return list(gateway.times.cells)
    total = [0] * (len(OPERATIONS) * OP_CELLS)
    for index in range(gateway.board.gateway_count):
        with gateway.board.times(index) as cells:
            total = [sum(pair) for pair in zip(total, cells, strict=True)]
    return total


def _add_histogram(family: Family, operation: str, row: list[int]) -> None:
    counted = 0
    for bound, count in zip([*map(str, OP_BOUNDS_S), "+Inf"], row, strict=False):
        counted += count
        family.add(counted, op=operation, le=bound)
    family.samples.append(({"op": operation, "": "sum"}, row[OP_SUM] / 1e6))
    family.samples.append(({"op": operation, "": "count"}, counted))


def process_families(gateway: Gateway) -> Iterator[Family]:
    board = gateway.board
    connections = Family("topics_http_connections", "gauge", "Open connections of all gateways.")
    under_way = Family("topics_http_requests_in_flight", "gauge", "Connections with a request under way.")
    yield connections.add(board.total("connections") if board is not None else 0)
    yield under_way.add(board.total("requests") if board is not None else 0)
    restarts = Family("topics_process_restarts_total", "counter", "How often a process was started again.")
    for name, count in _restarts(board):
        restarts.add(count, process=name)
    yield restarts


def _restarts(board: Board | None) -> Iterator[tuple[str, int]]:
    if board is None:
        return
    for index in range(board.shard_count):
        yield f"shard-{index}", board.watch_shard(index).get("restarts")
    for index in range(board.gateway_count):
        yield f"gateway-{index}", board.watch_gateway(index).get("restarts")
