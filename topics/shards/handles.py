"""Open data files: a bounded number at a time, most recently used kept.

A reader takes a handle when its read is planned and keeps the reference until it is done, so a file that is retired
meanwhile stays readable; the last reference closes it.
"""

from collections import OrderedDict

from topics.core.chunk import DataFile
from topics.shards.files import File, Files

OPEN_MAX = 256


class Handles:
    def __init__(self, files: Files) -> None:
        self.files = files
        self._open: OrderedDict[int, File] = OrderedDict()

    def get(self, info: DataFile) -> File:
        assert not info.cold  # a cold file is opened where it may take its time
        file = self._open.get(info.id)
        if file is None:
            file = self.files.open(info.path)
            self._open[info.id] = file
            if len(self._open) > OPEN_MAX:
                self._open.popitem(last=False)
        else:
            self._open.move_to_end(info.id)
        return file

    def drop(self, info: DataFile) -> None:
        self._open.pop(info.id, None)
