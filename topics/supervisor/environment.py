"""The environment of a child: the server's own, without its settings and without what is for the supervisor alone."""

import os
from pathlib import Path

import topics
from topics.settings import PREFIX

NOT_FOR_CHILDREN = (
    "NOTIFY_SOCKET",
    "CREDENTIALS_DIRECTORY",
    "LISTEN_FDS",
    "LISTEN_PID",
    "LISTEN_FDNAMES",
    "WATCHDOG_USEC",
    "WATCHDOG_PID",
)


def environment_of_children() -> dict[str, str]:
    """What they have in common; see `topics.logs.child_environment` for the rest."""
    env = {
        key: value for key, value in os.environ.items() if not key.startswith(PREFIX) and key not in NOT_FOR_CHILDREN
    }
    home = str(Path(topics.__file__).resolve().parents[1])
    env["PYTHONPATH"] = os.pathsep.join(filter(None, (home, env.get("PYTHONPATH"))))
    return env
