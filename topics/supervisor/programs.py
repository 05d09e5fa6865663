"""What a child is started with: its command line, its file descriptors, its environment.

Children are new interpreters, not forks: they share nothing with the supervisor but the descriptors named here.
"""

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

import msgspec
import trio

import topics
from topics import logs
from topics.keys import KeyDigest
from topics.settings import PREFIX, GatewayBoot, Settings, ShardPeers

# -P: the directory the server happens to be started in is no place to import from.
SHARD = (sys.executable, "-P", "-m", "topics.shards")
GATEWAY = (sys.executable, "-P", "-m", "topics.gateway")
NOT_FOR_CHILDREN = (
    "NOTIFY_SOCKET",
    "CREDENTIALS_DIRECTORY",
    "LISTEN_FDS",
    "LISTEN_PID",
    "LISTEN_FDNAMES",
    "WATCHDOG_USEC",
    "WATCHDOG_PID",
)


@dataclass(frozen=True, slots=True)
class Programs:
    """The commands of the two kinds of children; tests put stand-ins here."""

    shard: Sequence[str] = SHARD
    gateway: Sequence[str] = GATEWAY


@dataclass(frozen=True, slots=True)
class Launcher:
    """Starts the children of one server. All they inherit is in `lock_fd` (see datadir.py) and `lifeline_fd`."""

    programs: Programs
    settings: Settings
    keys: list[KeyDigest]
    run_dir: Path
    lock_fd: int
    lifeline_fd: int
    slots: list[int]
    served: list[int]
    board: str
    started_ms: int
    port_is_lent: bool = False

    def socket_of(self, kind: str, index: int) -> str:
        return str(self.run_dir / f"{kind}-{index}.sock")

    async def shard(self, index: int, directory: Path) -> trio.Process:
        command = [*self.programs.shard, "--dir", str(directory), "--socket", self.socket_of("shard", index)]
        command += ["--lifeline", str(self.lifeline_fd)]
        caps = self.settings.caps
        command += ["--board", self.board, "--index", str(index)]
        command += ["--max-topics", str(caps.topics), "--max-total-bytes", str(caps.total_bytes)]
        command += ["--max-watch-sessions", str(caps.watch_sessions)]
        for name, value in asdict(self.settings.limits).items():
            command += [f"--{name.replace('_', '-')}", str(value)]
        if self.settings.cold_dir:
            command += ["--cold-dir", str(Path(self.settings.cold_dir) / directory.name)]
        if self.settings.failpoints:
            command += ["--failpoints", self.settings.failpoints]
        with self._file(ShardPeers(self._sockets(), self.slots)) as peers:
            command += ["--peers-fd", str(peers.fileno())]
            return await self._start(command, f"shard-{index}", (peers.fileno(),))

    async def gateway(self, index: int, listener: socket.socket) -> trio.Process:
        with self._file(self._boot(index, listener.fileno())) as boot:
            command = [*self.programs.gateway, "--boot-fd", str(boot.fileno())]
            return await self._start(command, f"gateway-{index}", (boot.fileno(), listener.fileno()))

    def _file(self, content: msgspec.Struct) -> IO[bytes]:
        """For a child to read. It has no name, and goes when that is done."""
        file = tempfile.TemporaryFile(dir=self.run_dir)  # noqa: SIM115 - the caller closes it
        file.write(msgspec.json.encode(content))
        file.seek(0)
        return file

    def _sockets(self) -> dict[int, str]:
        return {shard: self.socket_of("shard", shard) for shard in self.served}

    def _boot(self, index: int, listen_fd: int) -> GatewayBoot:
        return GatewayBoot(
            settings=self.settings,
            key_digests=self.keys,
            listen_fd=listen_fd,
            lifeline_fd=self.lifeline_fd,
            index=index,
            shard_sockets=self._sockets(),
            slots=self.slots,
            board=self.board,
            socket=self.socket_of("gateway", index),
            started_ms=self.started_ms,
            port_is_lent=self.port_is_lent,
        )

    async def _start(self, command: list[str], name: str, fds: tuple[int, ...]) -> trio.Process:
        return await trio.lowlevel.open_process(
            command,
            stdin=subprocess.DEVNULL,
            pass_fds=(self.lock_fd, self.lifeline_fd, *fds),
            env=self._environment(name),
            process_group=0,
        )

    def _environment(self, name: str) -> dict[str, str]:
        env = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(PREFIX) and key not in NOT_FOR_CHILDREN
        }
        home = str(Path(topics.__file__).resolve().parents[1])
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (home, env.get("PYTHONPATH"))))
        return env | logs.child_environment(name, self.settings.log_format, self.settings.log_level)
