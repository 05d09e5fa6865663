"""The client for programs that wait: one call, one answer. Its calls are those of `Api`."""

import time
from typing import Any, Self

import httpx

from topics.client import calls
from topics.client.api import Api
from topics.client.calls import Request, Unreachable
from topics.client.retries import AGAIN, Retries


class Client(Api):
    def __init__(
        self,
        url: str = "http://127.0.0.1:4000",
        key: str | None = None,
        *,
        retries: Retries | None = None,
        timeout_s: float = calls.TIMEOUT_S,
        http: httpx.Client | None = None,
    ) -> None:
        """`http` is for those who need another transport; it keeps its own headers."""
        self._http = http or httpx.Client(base_url=url, headers=calls.headers_of(key))
        self._retries = retries or Retries()
        self._timeout_s = timeout_s

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    # --- requests -------------------------------------------------------------------------------------------------

    def send(self, request: Request, retries: Retries | None = None) -> dict[str, Any]:
        """One request, tried again while it makes sense. Raises ApiError, Unreachable."""
        return calls.read(self.exchange(request, retries))

    def exchange(self, request: Request, retries: Retries | None = None) -> httpx.Response:
        """The same for those who read the answer themselves, also one that says no. Raises Unreachable."""
        retries = retries or self._retries
        began, attempt = time.monotonic(), 0
        while True:
            attempt += 1
            wait_s = 0.0
            try:
                answer = self._http.request(request.method, request.path, **calls.options(request, self._timeout_s))
                if answer.status_code not in AGAIN:
                    return answer
                wait_s = calls.retry_after_s(answer)
            except httpx.TransportError as error:
                failure: Exception = error
                answer = None
            pause = retries.pause(attempt, time.monotonic() - began, wait_s)
            if pause is None:
                if answer is None:
                    raise Unreachable(f"{request.method} {request.path}: {failure!r}") from failure
                return answer
            time.sleep(pause)
