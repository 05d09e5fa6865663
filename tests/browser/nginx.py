"""An nginx in front of a server: as the example has it, or with nothing but proxy_pass."""

import socket
import subprocess
from pathlib import Path

from topics.testing.server import DEADLINE_S, ROOT, wait_until

EXAMPLE = (ROOT / "deploy" / "nginx.conf").read_text()
BARE = "server { listen 80; location / { proxy_pass http://127.0.0.1:4000; } }"
MAIN = """
daemon off;
master_process off;
pid {folder}/pid;
error_log {folder}/error.log;
events {{}}
http {{
    access_log {folder}/access.log;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/topics.conf;
}}
"""


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Nginx:
    """`config` is for the port 80 and a server on 4000; here these are other ports."""

    def __init__(self, program: str, folder: Path, config: str, server_port: int) -> None:
        folder.mkdir()
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._folder = folder
        for name, port in (("listen 80;", f"listen 127.0.0.1:{self.port};"), (":4000;", f":{server_port};")):
            assert config.count(name) == 1
            config = config.replace(name, port)
        (folder / "topics.conf").write_text(config)
        (folder / "nginx.conf").write_text(MAIN.format(folder=folder))
        command = [program, "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log")]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        wait_until(self._listens, "nginx")

    def _listens(self) -> bool:
        assert self._process.poll() is None, (self._folder / "error.log").read_text()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def answers(self) -> list[tuple[str, int]]:
        """Path and status of every request that has ended."""
        lines = [line.split('"') for line in (self._folder / "access.log").read_text().splitlines()]
        return [(line[1].split()[1], int(line[2].split()[0])) for line in lines]

    def close(self) -> None:
        self._process.kill()
        self._process.wait(timeout=DEADLINE_S)
