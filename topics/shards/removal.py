"""Data files that no snapshot refers to any more. What stays of them after a failure, recovery removes."""

import logging

from topics.core.chunk import DataFile
from topics.shards import datafile
from topics.shards.datafile import SEGMENT
from topics.shards.files import Files

log = logging.getLogger(__name__)


def remove_files(files: Files, data_files: list[DataFile]) -> None:
    """Nothing refers to these files: if one stays, recovery removes it.

    An empty directory goes too, so that one whose name could not be synced is made anew the next time.
    """
    try:
        for info in data_files:
            for path in (info.path, datafile.index_path(info.path)):
                files.unlink(path)
        for topic_id in {info.topic_id for info in data_files if info.kind == SEGMENT}:
            files.remove_dir(f"segments/{topic_id}")
    except OSError as error:
        log.warning("data files that are no longer needed stay: %s", error)


def remove_blocks(files: Files, moved: list[DataFile]) -> None:
    """The cold tier has them now. If one stays, recovery removes it."""
    try:
        for info in moved:
            files.unlink(info.path)
    except OSError as error:
        log.warning("data files that have moved to the cold directory stay: %s", error)
