"""`topics serve` whose children are stand-ins, for tests of the supervisor alone (see topics/testing/server.py)."""

import json
import socket
import sys
from pathlib import Path

from topics.testing.server import DEADLINE_S, SERVE, Server, alive, wait_until

HERE = Path(__file__).resolve().parent
STANDIN = f"{sys.executable} {HERE / 'standin_gateway.py'}"

__all__ = ["STANDIN", "ServerProcess", "alive", "wait_until"]


class ServerProcess(Server):
    """Started as it is made."""

    def __init__(self, folder: Path, *, gateway: str | None = STANDIN, shard: str = "", **settings: object) -> None:
        """`gateway=None` runs the real `topics serve`."""
        command = SERVE if gateway is None else (sys.executable, str(HERE / "serve_with_standins.py"))
        standins = {"STANDIN_GATEWAY": gateway or "", "STANDIN_SHARD": shard}
        super().__init__(folder, command=command, environment=standins, **settings)
        self.pids: set[int] = set()  # of all children ever seen
        self.start()

    def wait_ready(self):
        super().wait_ready()
        self.status()
        return self

    def status(self):
        status = super().status()
        self.pids |= {child["pid"] for child in status["children"] if child["pid"]}
        return status

    def get(self, path="/"):
        """One request on a connection of its own; the answer as JSON."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=DEADLINE_S) as sock:
            sock.sendall(b"GET %s HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n" % path.encode())
            text = b"".join(iter(lambda: sock.recv(65536), b""))
        return json.loads(text.partition(b"\r\n\r\n")[2])
