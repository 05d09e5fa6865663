"""The same job, unchanged, on a standalone cluster, from the command line."""

import json
import subprocess
import sys

import pyarrow.parquet
import pytest

from tests.spark.cluster import QUICK_JAVA, Cluster
from tests.spark.frames import fill

RECORDS = 4000


@pytest.mark.slow
def test_the_archive_command_runs_on_two_executors(server, topics, name, tmp_path):
    fill(topics, name, range(RECORDS))
    with Cluster(tmp_path / "cluster", workers=2) as cluster:
        settings = ["spark.executor.memory=512m", "spark.driver.host=127.0.0.1", "spark.locality.wait=0"]
        settings.append("spark.scheduler.minRegisteredResourcesRatio=1.0")  # both executors before the first task
        settings += [f"spark.{part}.extraJavaOptions={QUICK_JAVA}" for part in ("driver", "executor")]
        command = [sys.executable, "-m", "topics.cli", "pipeline", "archive", str(tmp_path / "archive"), name]
        command += ["--partitions", "8", "--master", cluster.url, "--url", server.url, "--json"]
        command += [word for setting in settings for word in ("--conf", setting)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == {"topics": 1, "steps": 1, "records": RECORDS, "lost": 0, "deleted": 0}
        assert f"{name}: seq 1 to {RECORDS} of {RECORDS}, {RECORDS} records archived" in done.stderr
        assert cluster.finished_tasks(0) > 0
        assert cluster.finished_tasks(1) > 0
    files = list((tmp_path / "archive/data").rglob("*.parquet"))
    seqs = sorted(seq for file in files for seq in pyarrow.parquet.read_table(file)["seq"].to_pylist())
    assert seqs == list(range(1, RECORDS + 1))
