"""Is the cold directory another data directory's? Asked once at start, so that the mistake is seen at once.

The shards ask again whenever they use it. So this is only for a clear end of a start that nobody wants: a cold
directory that does not answer soon, or is not there, is no reason not to start.
"""

import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from topics.supervisor import slotmap
from topics.supervisor.datadir import DataDirError

OWNER, OWN_ID = "OWNER", "cold.id"  # see topics/shards/cold.py, which writes them
PATIENCE_S = 1.0


def check_cold_dir(cold_dir: str | None, data_dir: Path, shards: Iterable[int]) -> None:
    """Raises DataDirError if some shard's part of it belongs to another data directory."""
    if cold_dir is None:
        return
    foreign: list[Path] = []
    places = [(slotmap.shard_dir(Path(cold_dir), shard), slotmap.shard_dir(data_dir, shard)) for shard in shards]
    thread = threading.Thread(target=_find_foreign, args=(places, foreign), daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    if foreign:
        raise DataDirError(
            f"the cold directory {cold_dir} belongs to another data directory than {data_dir}: {foreign[0]} says so. "
            "Give each data directory a cold directory of its own (TOPICS_COLD_DIR)"
        )


def _find_foreign(places: list[tuple[Path, Path]], foreign: list[Path]) -> None:
    for cold, data in places:
        with suppress(OSError, UnicodeDecodeError):
            owner = (cold / OWNER).read_text()
            if _first_line(data / OWN_ID) != owner.strip():
                foreign.append(cold / OWNER)


def _first_line(path: Path) -> str:
    try:
        return path.read_text().partition("\n")[0]
    except FileNotFoundError:
        return ""
