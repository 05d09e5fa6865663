"""Processes that die in the middle of a query: the server, the driver."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.spark.frames import fill, numbers_of, source
from topics.client import Client
from topics.testing.server import DEADLINE_S, ROOT, Server, join, send_group_signal, wait_until

RECORDS = 20_000


@pytest.mark.slow
def test_a_server_that_is_killed_and_comes_back_is_waited_for(spark, tmp_path):
    """Read and write go on against the next life of the server; every acknowledged record is there, none twice."""
    with Server(tmp_path / "server", shards=1, port=0).start().wait_ready() as server, Client(server.url) as topics:
        topics.put_topic("in", durable=True)
        topics.put_topic("out", durable=True)
        fill(topics, "in", range(RECORDS))
        frame = source(spark, server, topic="in", minPartitions=4, fetchSize=200).load().select("data")
        lives: list[Server] = []

        def hurt() -> None:
            wait_until(lambda: len_of(topics, "out") > RECORDS // 10, "the copy to be under way", 240)
            server.kill_all()
            lives.append(server.start(port=server.port).wait_ready())

        thread = threading.Thread(target=hurt)  # not the query: Spark knows its formats in the main thread alone
        thread.start()
        frame.write.format("topics").mode("append").options(url=server.url, topic="out", batchSize=200).save()
        join(thread)
        assert lives == [server]
        assert sorted(numbers_of(topics, "out")) == list(range(RECORDS))


def environment_without_java(tmp_path: Path) -> dict[str, str]:
    """A PATH of the few programs that Spark's scripts call, and no JAVA_HOME."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in (
        "bash",
        "sh",
        "dirname",
        "basename",
        "env",
        "ps",
        "rm",
        "mkdir",
        "cat",
        "uname",
        "nice",
        "id",
        "chmod",
    ):
        if found := shutil.which(name):
            (programs / name).symlink_to(found)
    env = {key: value for key, value in os.environ.items() if key not in ("JAVA_HOME", "SPARK_HOME", "PYSPARK_PYTHON")}
    return env | {"PATH": str(programs), "PYTHONPATH": str(ROOT)}


@pytest.mark.slow
def test_a_driver_without_java_that_is_killed_goes_on_from_its_checkpoint(server, topics, name, tmp_path):
    """The driver finds a Java by itself; kill -9 in the middle of a batch costs nothing and doubles nothing."""
    fill(topics, name, range(3000))
    arguments = [server.url, name, f"{name}.out", str(tmp_path / "checkpoint")]
    command = [sys.executable, "-m", "tests.spark.copying_driver", *arguments]
    env = environment_without_java(tmp_path)
    assert shutil.which("java", path=env["PATH"]) is None
    with open(tmp_path / "log", "wb") as log:
        first = subprocess.Popen(
            [*command, "0.05"], cwd=tmp_path, env=env, stdout=log, stderr=log, start_new_session=True
        )
        try:
            wait_until(lambda: written(first, topics, f"{name}.out", tmp_path), "the first records", 240)
        finally:
            send_group_signal(first.pid, signal.SIGKILL)
            first.wait(timeout=DEADLINE_S)
        assert 0 < len(numbers_of(topics, f"{name}.out")) < 3000
        subprocess.run([*command, "0"], cwd=tmp_path, env=env, stdout=log, stderr=log, check=True, timeout=300)
    assert sorted(numbers_of(topics, f"{name}.out")) == list(range(3000))


def written(driver: subprocess.Popen, topics: Client, topic: str, tmp_path: Path) -> bool:
    assert driver.poll() is None, (tmp_path / "log").read_text()
    return len_of(topics, topic) > 0


def len_of(topics: Client, topic: str) -> int:
    """Records so far. Asked a few times a second: more would take the processor from those that are waited for."""
    time.sleep(0.2)
    return sum(found["count"] for found in topics.topics(topic) if found["topic"] == topic)
