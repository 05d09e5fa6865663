"""`python -m topics.supervisor.template FD`: a process that has imported all that children need, and forks them.

To start an interpreter and to import what a shard or a gateway needs takes 200 ms of a processor; a fork takes a few.
This process does nothing but import and fork: no threads, no event loop, no data, no secret. It is a new interpreter
with the environment of a child, so its forks share as little with the supervisor as if each had been started so. What
belongs to one process alone must not be made by an import, or be made anew by `os.register_at_fork`.

FD is a SOCK_SEQPACKET socket. Each message is a Request with descriptors: first the one at which the fork waits until
it may begin, then those of `fds`. The answer is the fork's pid, or -errno. At the end of the socket this process ends.
"""

import ctypes
import errno
import fcntl
import gc
import os
import socket
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import msgspec

PROGRAMS = ("topics.shards.__main__", "topics.gateway.__main__")
MESSAGE_BYTES, FDS_MAX = 128 << 10, 16
GO = b"!"


class Request(msgspec.Struct, frozen=True):
    program: str  # one of PROGRAMS
    arguments: list[str]
    command: list[str]  # what would start the same process as an interpreter of its own: for ps to show
    environment: dict[str, str]  # what differs from that of this process
    fds: list[int]  # the numbers that the descriptors are to have


def main() -> int:
    gc.disable()  # what is imported stays: there is nothing to collect
    show(sys.orig_argv[:-1])  # without the room for longer ones
    control = socket.socket(fileno=int(sys.argv[1]))
    programs = {name: import_module(name) for name in PROGRAMS}
    gc.freeze()  # else a fork's collector would write to everything that is shared, and so copy it
    while True:
        message, fds, _, _ = socket.recv_fds(control, MESSAGE_BYTES, FDS_MAX)
        if not message:
            return 0
        request = msgspec.json.decode(message, type=Request)
        pid = fork_away()
        if pid == 0:
            break
        for fd in fds:
            os.close(fd)
        control.send(b"%d" % pid)
    control.close()
    begin(request, fds)
    gc.enable()
    status: int = programs[request.program].main(request.arguments)
    return status


def fork_away() -> int:
    """A fork that becomes a child of the supervisor, which adopts orphans: so the supervisor alone waits for it, as for
    any child, and nobody has to tell it of its end. Its pid, or -errno; 0 in the fork."""
    reading, writing = os.pipe()
    between = _fork()
    if between == 0:
        pid = _fork()
        if pid != 0:
            os.write(writing, b"%d" % pid)
            os._exit(0)
        os.close(reading)
        os.close(writing)
        return 0
    os.close(writing)
    if between > 0:
        os.waitpid(between, 0)  # with its end the fork has been adopted
    pid = int(os.read(reading, 32) or -errno.EAGAIN) if between > 0 else between
    os.close(reading)
    return pid


def _fork() -> int:
    try:
        return os.fork()
    except OSError as error:
        return -(error.errno or errno.EAGAIN)


def begin(request: Request, fds: Sequence[int]) -> None:
    """Make a fork the process that was asked for. It ends here if the supervisor does not know of it: another may have
    been started instead, and two must not have the same files."""
    os.setpgid(0, 0)  # Ctrl-C is for the supervisor
    gate = max(request.fds, default=2) + 1
    place(fds, [gate, *request.fds])
    os.environ.update(request.environment)
    sys.argv = [*request.command[:1], *request.arguments]
    show(request.command)
    if os.read(gate, 1) != GO:
        os._exit(0)
    os.close(gate)


def place(fds: Sequence[int], numbers: Sequence[int]) -> None:
    """Give descriptors these numbers, whichever they have now."""
    above = max(*fds, *numbers) + 1
    moved = [fcntl.fcntl(fd, fcntl.F_DUPFD, above) for fd in fds]
    for fd in fds:
        os.close(fd)
    for fd, number in zip(moved, numbers, strict=True):
        os.dup2(fd, number)
        os.close(fd)


def show(command: Sequence[str]) -> None:
    """Have ps and /proc show this as our command line. It is written over the old one, as far as there is room."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])  # proc(5): arg_start, arg_end; 0 if they are kept from us
    if start > 0:
        text = b"\0".join(os.fsencode(part) for part in command)
        room = end - start - 1
        ctypes.memmove(start, text[:room].ljust(room, b"\0"), room)


if __name__ == "__main__":
    sys.exit(main())
