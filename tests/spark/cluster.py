"""A Spark standalone cluster of real processes on this machine: a master and workers of one core each."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Self

import pyspark

from spark_integration.java import prepare_java
from topics.testing.server import wait_until

START_S = 240.0
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # it lives for seconds


class Cluster:
    def __init__(self, folder: Path, workers: int) -> None:
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        folder.mkdir()
        try:
            self._run("master", "org.apache.spark.deploy.master.Master")
            self.url = self._wait_for("master", r"Starting Spark master at (spark://\S+)")
            for index in range(workers):
                where = ("-d", str(folder / f"work-{index}"), "--cores", "1", "--memory", "1g", self.url)
                self._run(f"worker-{index}", "org.apache.spark.deploy.worker.Worker", *where)
            for index in range(workers):
                self._wait_for(f"worker-{index}", r"Successfully registered with master (\S+)")
        except BaseException:
            self.close()
            raise

    def finished_tasks(self, worker: int) -> int:
        """Of all executors that this worker has run."""
        logs = (self._folder / f"work-{worker}").glob("app-*/*/stderr")
        return sum(log.read_text(errors="replace").count("Finished task") for log in logs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            process.wait(60)

    def _run(self, name: str, main: str, *arguments: str) -> None:
        home = Path(pyspark.__file__).parent
        env = os.environ | prepare_java() | {"SPARK_HOME": str(home), "SPARK_DAEMON_MEMORY": "256m"}
        env |= {"PYSPARK_PYTHON": sys.executable, "SPARK_DAEMON_JAVA_OPTS": QUICK_JAVA}
        command = [
            str(home / "bin/spark-class"),
            main,
            "--host",
            "127.0.0.1",
            "--port",
            "0",
            "--webui-port",
            "0",
            *arguments,
        ]
        with open(self._folder / f"{name}.log", "wb") as log:
            self._processes.append(subprocess.Popen(command, env=env, stdout=log, stderr=log))

    def _wait_for(self, name: str, pattern: str) -> str:
        log = self._folder / f"{name}.log"

        def found() -> str:
            text = log.read_text(errors="replace")
            assert all(process.poll() is None for process in self._processes), text
            match = re.search(pattern, text)
            return match[1] if match else ""

        return wait_until(found, f"{name}: {pattern}", START_S)
