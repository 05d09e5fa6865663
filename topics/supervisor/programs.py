"""What a child is started with: its command line, its file descriptors, its environment.

Children share nothing with the supervisor but the descriptors named here. They are forks of the template, which knows
as little (template.py), or interpreters of their own: stand-ins, and all of them where there is no template.
"""

import logging
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

import msgspec
import trio

from topics import logs
from topics.keys import KeyDigest
from topics.settings import GatewayBoot, Settings, ShardPeers
from topics.supervisor.environment import environment_of_children
from topics.supervisor.forks import Forks, Process, TemplateLost
from topics.supervisor.template import Request

log = logging.getLogger("topics.supervisor")

# -P: the directory the server happens to be started in is no place to import from.
SHARD = (sys.executable, "-P", "-m", "topics.shards")
GATEWAY = (sys.executable, "-P", "-m", "topics.gateway")
# What the template calls them.
FORKED: Mapping[Sequence[str], str] = {SHARD: "topics.shards.__main__", GATEWAY: "topics.gateway.__main__"}


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
    forks: Forks | None = None

    def socket_of(self, kind: str, index: int) -> str:
        return str(self.run_dir / f"{kind}-{index}.sock")

    async def shard(self, index: int, directory: Path) -> Process:
        given = ["--dir", str(directory), "--socket", self.socket_of("shard", index)]
        given += ["--lifeline", str(self.lifeline_fd)]
        caps = self.settings.caps
        given += ["--board", self.board, "--index", str(index)]
        given += ["--max-topics", str(caps.topics), "--max-total-bytes", str(caps.total_bytes)]
        given += ["--max-watch-sessions", str(caps.watch_sessions)]
        for name, value in asdict(self.settings.limits).items():
            given += [f"--{name.replace('_', '-')}", str(value)]
        if self.settings.cold_dir:
            given += ["--cold-dir", str(Path(self.settings.cold_dir) / directory.name)]
        if self.settings.failpoints:
            given += ["--failpoints", self.settings.failpoints]
        with self._file(ShardPeers(self._sockets(), self.slots)) as peers:
            given += ["--peers-fd", str(peers.fileno())]
            return await self._start(self.programs.shard, given, f"shard-{index}", (peers.fileno(),))

    async def gateway(self, index: int, listener: socket.socket) -> Process:
        with self._file(self._boot(index, listener.fileno())) as boot:
            given = ["--boot-fd", str(boot.fileno())]
            fds = (boot.fileno(), listener.fileno())
            return await self._start(self.programs.gateway, given, f"gateway-{index}", fds)

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

    async def _start(self, program: Sequence[str], given: list[str], name: str, fds: tuple[int, ...]) -> Process:
        command, fds = [*program, *given], (self.lock_fd, self.lifeline_fd, *fds)
        environment = logs.child_environment(name, self.settings.log_format, self.settings.log_level)
        forked = FORKED.get(tuple(program))
        if self.forks is not None and forked is not None:
            try:
                return await self.forks.start(Request(forked, given, command, environment, list(fds)))
            except TemplateLost:
                log.debug("%s is started without the template, which is gone", name)
        return await trio.lowlevel.open_process(
            command,
            stdin=subprocess.DEVNULL,
            pass_fds=fds,
            env=environment_of_children() | environment,
            process_group=0,
        )
