"""The beginning of `topics serve`: logs, then API keys, then everything else.

With keys the process starts itself again (keyload.py). What the server itself needs, trio above all, takes a tenth of a
second to import; it is imported after that, so that it happens once.
"""

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from topics import logs
from topics.keys import KeyDigest, KeysError
from topics.settings import Loaded
from topics.supervisor.keyload import take_keys

if TYPE_CHECKING:
    from topics.supervisor.programs import Programs

log = logging.getLogger("topics.supervisor")


def run(loaded: Loaded, programs: "Programs | None" = None) -> int:
    """Serve until told to stop; the exit status."""
    logs.configure("supervisor", loaded.settings.log_format, loaded.settings.log_level)
    try:
        keys = take_keys(loaded.keys)
    except KeysError as error:
        log.error("%s", error)
        return 2
    _warn(loaded.unknown, keys)
    from topics.supervisor.serve import serve

    return serve(loaded.settings, keys, programs)


def _warn(unknown: Sequence[str], keys: Sequence[KeyDigest]) -> None:
    for name in unknown:
        log.warning("the variable %s is not one that topics reads", name)
    if not keys:
        log.warning("no API keys are set: everybody who reaches the port is served")
