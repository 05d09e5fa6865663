"""A driver whose shard has a cold tier, in a folder of the same disk, and moves segments when it is told to."""

from topics.core.chunk import DataFile
from topics.shards.cold import ColdTier, ColdUnavailable, Unmovable
from topics.shards.files import Files
from topics.shards.relocator import to_move
from topics.testing.driver import Driver
from topics.testing.files_below import FilesBelow

COLD = "cold"


class ColdDriver(Driver):
    def _cold_tier(self, files: Files) -> ColdTier:
        self.swept = False
        self.refused = 0  # rounds that the cold directory did not allow
        self.tier = ColdTier(files, FilesBelow(files, COLD))
        return self.tier

    def relocate(self) -> None:
        """A round of the relocator, from the sweep to the checkpoint that makes the copies count."""
        self.copy_all()
        self.checkpoint()

    def copy_all(self) -> None:
        """The part that needs the cold directory."""
        store = self.store
        try:
            if not self.swept:
                self.tier.sweep({info.path for info in store.data_files.values() if info.cold})
                self.swept = True
            self._clear_litter()
            for info in to_move(store):
                self._copy(info)
        except ColdUnavailable:
            self.refused += 1
            # A copy whose sync failed is no copy, and a mark whose sync failed is made again.
            self._excused |= {f"{COLD}/{info.path}" for info in store.data_files.values() if not info.cold}
            self._excused |= {f"{COLD}/OWNER", "cold.id"}

    def _copy(self, info: DataFile) -> None:
        try:
            self.tier.copy(info)
            self.store.copied.append(info)
        except Unmovable:
            self.store.keep_hot(info)

    def _clear_litter(self) -> None:
        litter = list(self.store.cold_litter)
        self.tier.remove(litter)
        del self.store.cold_litter[: len(litter)]

    def cold_segments(self) -> list[str]:
        return sorted(info.path for info in self.store.data_files.values() if info.cold)
