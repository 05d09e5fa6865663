"""The beginning of `topics serve`: logs, then API keys, then everything else.

With keys the process starts itself again (keyload.py). What the server itself needs, trio above all, takes a tenth of a
second to import; it is imported after that, so that it happens once. The template is started first, to import what
children need at the same time.
"""

import gc
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from topics import logs
from topics.keys import KeyDigest, KeysError
from topics.settings import Loaded
from topics.supervisor.keyload import take_keys
from topics.supervisor.template_start import start_template

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
    template = start_template()  # it imports, too, meanwhile
    try:
        gc.disable()  # there is nothing to collect in what is imported
        from topics.supervisor.serve import serve

        gc.freeze()
        gc.enable()
        return serve(loaded.settings, keys, programs, template)
    finally:
        if template is not None:
            template.close()


def _warn(unknown: Sequence[str], keys: Sequence[KeyDigest]) -> None:
    for name in unknown:
        log.warning("the variable %s is not one that topics reads", name)
    if not keys:
        log.warning("no API keys are set: everybody who reaches the port is served")
