"""Files wherever Spark can keep them (local, HDFS, object stores), through Hadoop's own file system classes."""

import json
from typing import Any


class Storage:
    def __init__(self, spark: Any) -> None:
        self._jvm = spark.sparkContext._jvm
        self._conf = spark.sparkContext._jsc.hadoopConfiguration()

    def names(self, folder: str) -> list[str]:
        """Of what is in a folder, sorted; nothing if it does not exist."""
        path, files = self._at(folder)
        return sorted(str(one.getPath().getName()) for one in files.listStatus(path)) if files.exists(path) else []

    def exists(self, file: str) -> bool:
        path, files = self._at(file)
        return bool(files.exists(path))

    def remove(self, place: str) -> None:
        path, files = self._at(place)
        files.delete(path, True)

    def read_json(self, file: str) -> Any:
        path, files = self._at(file)
        stream = files.open(path)
        try:
            return json.loads(bytes(stream.readAllBytes()))
        finally:
            stream.close()

    def write_json(self, file: str, value: Any) -> None:
        self.write_text(file, json.dumps(value, indent=1, sort_keys=True))

    def write_text(self, file: str, text: str) -> None:
        """All of it or nothing: written beside and renamed. A crash leaves at most a file with a leading dot."""
        path, files = self._at(file)
        beside = self._path(f"{path.getParent()}/.{path.getName()}.new")
        stream = files.create(beside, True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()
        files.delete(path, False)
        if not files.rename(beside, path):
            raise OSError(f"{beside} could not be renamed to {path}")

    def _path(self, place: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(place)

    def _at(self, place: str) -> tuple[Any, Any]:
        path = self._path(place)
        return path, path.getFileSystem(self._conf)
