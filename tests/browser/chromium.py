"""A headless Chromium with one page, driven over the DevTools protocol."""

import itertools
import json
import signal
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
from websockets.sync.client import connect

from topics.testing.server import DEADLINE_S, send_group_signal, wait_until

FLAGS = (
    "--headless",
    "--no-sandbox",  # for root
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--disable-breakpad",
    "--no-first-run",
    "--no-proxy-server",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-port=0",
)


class Chromium:
    def __init__(self, program: str, folder: Path) -> None:
        self._profile = folder / "profile"
        with open(folder / "chromium.log", "wb") as log:
            self._process = subprocess.Popen(
                [program, *FLAGS, f"--user-data-dir={self._profile}", "about:blank"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # its helpers are in its group
            )
        self._ids = itertools.count(1)
        with ExitStack() as held:
            held.callback(self._kill)
            self._page = held.enter_context(connect(self._page_address(), max_size=None, open_timeout=DEADLINE_S))
            self.close = held.pop_all().close

    def _page_address(self) -> str:
        written = self._profile / "DevToolsActivePort"
        text = wait_until(lambda: written.exists() and written.read_text(), "the browser to start")
        targets = f"http://127.0.0.1:{str(text).split()[0]}/json/list"

        def page() -> str:
            found = [target for target in httpx.get(targets).json() if target["type"] == "page"]
            return str(found[0]["webSocketDebuggerUrl"]) if found else ""

        return wait_until(page, "a page")

    def open(self, url: str) -> None:
        """Go to a page and wait until it is there."""
        answer = self._call("Page.navigate", url=url)
        assert "errorText" not in answer, answer
        wait_until(lambda: self.run("document.readyState + location.href") == f"complete{url}", f"the page {url}")

    def run(self, script: str) -> Any:
        """The value of an expression in the page; of a promise, what it comes to."""
        answer = self._call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._ids)
        self._page.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            answer = json.loads(self._page.recv(timeout=DEADLINE_S))
            if answer.get("id") == number:  # others are events
                assert "error" not in answer, answer
                return dict(answer["result"])

    def _kill(self) -> None:
        send_group_signal(self._process.pid, signal.SIGKILL)
        self._process.wait(timeout=DEADLINE_S)
