"""How a command fails: one exception, one exit status for each thing a script may want to tell apart."""

import json
from typing import Any

import click

from topics import errors

OK = 0
REFUSED = 1
USAGE = 2
NOT_FOUND = 3
NOT_ALLOWED = 4
CONFLICT = 5
UNREACHABLE = 6
LATER = 7
INTERRUPTED = 130

MEANINGS = {
    OK: "done",
    REFUSED: "refused or failed, for any other reason",
    USAGE: "wrong usage, or a setting that cannot be used",
    NOT_FOUND: "there is no such topic, router or consumer group",
    NOT_ALLOWED: "the key is missing, unknown, or may not do this",
    CONFLICT: "it does not fit what is there (a full topic, no queue, a lease or group that somebody else has)",
    UNREACHABLE: "no server answers",
    LATER: "not now: throttled, starting, stopping, or the disk is full",
    INTERRUPTED: "interrupted",
}
EXIT_TABLE = "\n".join(f"  {status:<4}{meaning}" for status, meaning in MEANINGS.items())

_BY_STATUS = {401: NOT_ALLOWED, 403: NOT_ALLOWED, 404: NOT_FOUND, 409: CONFLICT, 422: CONFLICT}
_LATER = (429, 503, 507)
USAGE_CODE = "usage"


class Failure(Exception):
    """Ends the command. `error` is what stands under "error" in the JSON form."""

    def __init__(self, status: int, message: str, code: str = "", **more: Any) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.more = more

    @property
    def error(self) -> dict[str, Any]:
        code = self.code or (USAGE_CODE if self.status == USAGE else errors.INTERNAL)
        return {"code": code, "message": self.message, **self.more}


def of_answer(status: int, error: dict[str, Any], request_id: str | None) -> Failure:
    """The failure that a refusal of the server is."""
    exit_status = LATER if status in _LATER else _BY_STATUS.get(status, REFUSED)
    more = {"detail": error["detail"]} if error.get("detail") else {}
    if request_id:
        more["request_id"] = request_id
    return Failure(exit_status, str(error.get("message", f"HTTP {status}")), str(error.get("code", "")), **more)


def report(failure: Failure, *, as_json: bool) -> None:
    """To stderr: stdout has only what was asked for."""
    if as_json:
        click.echo(json.dumps({"error": failure.error}, ensure_ascii=False), err=True)
        return
    notes = [failure.code] if failure.code else []
    if "request_id" in failure.more:
        notes.append(f"request {failure.more['request_id']}")
    click.echo(f"error: {failure.message}" + (f" ({', '.join(notes)})" if notes else ""), err=True)
