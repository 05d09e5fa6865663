"""`topics pipeline`: a day of the pipeline, command by command, in the Spark of the other tests."""

import json

import pyarrow.parquet
import pytest
from click.testing import CliRunner

from tests.spark.frames import everything
from topics.cli import main, pipeline


class Kept:
    """A session that the command does not stop."""

    def __init__(self, session) -> None:
        self._session = session

    def __getattr__(self, name):
        return getattr(self._session, name)

    def stop(self) -> None:
        pass


@pytest.fixture
def run(spark, server, monkeypatch):
    monkeypatch.setattr(pipeline, "_session", lambda *_: Kept(spark))

    def command(*words: str, status: int = 0):
        done = CliRunner().invoke(main, ["pipeline", *words, "--url", server.url, "--json"])
        assert done.exit_code == status, done.output
        return json.loads(done.stdout or done.stderr.splitlines()[-1]), done.stderr

    return command


def test_a_day_of_the_pipeline(run, topics, name, tmp_path):
    """Files come in, are counted, archived, checked, played back, and checked again after the archive was damaged."""
    files, archive, state = tmp_path / "in", str(tmp_path / "archive"), str(tmp_path / "state")
    files.mkdir()
    (files / "orders.csv").write_text("customer,amount\n" + "".join(f"c{n % 3},{n}\n" for n in range(300)))
    words = ["--format", "csv", "--checkpoint", f"{state}/in", "--topic", name, "--tag-column", "customer"]
    found, said = run("ingest", str(files), *words)
    assert found == {"batches": 1, "rows": 300}
    assert said == "batch 0: 300 rows\n"

    words = ["--mode", "batch", "--window", "1 hour", "--value", "$.amount", "--checkpoint", f"{state}/hours"]
    found, _ = run("aggregate", name, *words, "--into-folder", str(tmp_path / "hours"), "--quantile", "1")
    assert found["records"] == 300
    rows = pyarrow.parquet.read_table(tmp_path / "hours").to_pylist()
    assert sum(row["sum"] for row in rows) == sum(range(300))
    assert max(row["p100"] for row in rows) == 299
    found, _ = run("aggregate", name, *words, "--into-topic", f"{name}.hours", status=1)
    assert found["error"]["code"] == "BadOption"

    found, said = run("archive", archive, name, "--step", "200")
    assert (found["steps"], found["records"]) == (2, 300)
    assert "seq 1 to 200 of 300, 200 records archived" in said
    found, _ = run("audit", str(tmp_path / "audit"), name, "--archive", archive)
    assert (found["records"], found["archived"], found["problems"]) == (300, 300, 0)

    found, _ = run("replay", archive, name, f"{name}.again", "--first", "101")
    assert found["records"] == 200
    again = everything(topics, f"{name}.again")
    assert [record["data"] for record in again] == [record["data"] for record in everything(topics, name)[100:]]

    for file in (tmp_path / "archive" / "_manifest" / name).glob("*00300.json"):
        file.write_text(file.read_text().replace('"records": 100', '"records": 101'))
        file.with_name(f".{file.name}.crc").unlink(missing_ok=True)  # Hadoop's, which would not let it be read
    found, said = run("audit", str(tmp_path / "audit"), name, "--archive", archive, status=1)
    assert found["problems"] == 1
    assert "has not as many records as its manifest says" in said
    found, _ = run("dead-letters", str(tmp_path / "dead"), "--pattern", f"{name}\\.dead")
    assert (found["jobs"], found["reasons"]) == (0, {})
    words = ["--redrive-to", f"{name}.queue", "--tag-prefix", "c", "--limit", "5"]
    found, _ = run("dead-letters", str(tmp_path / "dead"), f"{name}.again", *words, status=1)
    assert f"topic '{name}.queue' does not exist" in found["error"]["message"]


def test_what_is_wrong_is_said_in_one_line(run, name, tmp_path):
    found, _ = run("archive", str(tmp_path), name, status=1)
    assert "does not exist at http" in found["error"]["message"]
    found, _ = run("archive", str(tmp_path), name, "--pattern", "x", status=2)
    assert "one of them" in found["error"]["message"]
    found, _ = run("dead-letters", str(tmp_path), name, "--limit", "5", status=2)
    assert "are for --redrive-to" in found["error"]["message"]
