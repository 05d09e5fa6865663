"""Starts the template (template.py), of which children are forks. Imports next to nothing, so that the template can get
on with its own imports while the supervisor is busy with its."""

import ctypes
import os
import socket
import subprocess
import sys
from dataclasses import dataclass

from topics.supervisor.environment import environment_of_children

COMMAND = (sys.executable, "-P", "-m", "topics.supervisor.template")
ROOM = " " * 4096  # in its command line, which those of its forks are written over
PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True)
class Template:
    process: subprocess.Popen[bytes]
    control: socket.socket

    def close(self) -> None:
        """It holds nothing that has to be ended in an orderly way."""
        self.control.close()
        self.process.kill()
        self.process.wait()


def start_template() -> Template | None:
    """None if this system cannot do it: children are then started as interpreters of their own."""
    if not _adopt_orphans():
        return None
    ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with its:
        try:
            process = subprocess.Popen(
                [*COMMAND, str(its.fileno()), ROOM],
                stdin=subprocess.DEVNULL,
                pass_fds=(its.fileno(),),
                env=environment_of_children(),
                process_group=0,
            )
        except OSError:  # whoever needs a child will say what is wrong
            ours.close()
            return None
    return Template(process, ours)


def _adopt_orphans() -> bool:
    """Make processes whose parent ends our children, so that the template can make children for us (Linux)."""
    try:
        os.close(os.pidfd_open(os.getpid()))  # to wait for them
        return bool(ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False
