"""Every example in Python of docs/compared.md does something, and without a refusal."""

import re
from pathlib import Path

import pytest

import topics

PAGE = Path(__file__).resolve().parents[2] / "docs" / "compared.md"


def examples() -> list[str]:
    """What stands in the last column of a table and is a call."""
    found = []
    for line in PAGE.read_text().splitlines():
        if line.startswith("| ") and not line.startswith("|---"):
            column = re.split(r"(?<!\\)\|", line.strip().strip("|"))[-1]
            found += [code for code in re.findall(r"`([^`]+)`", column) if re.search(r"\b(api|db)\.", code)]
    return found


@pytest.fixture
def names(tmp_path):
    """Topics with something in them, and the names that examples use."""
    with topics.open(tmp_path / "data") as db:
        db.append("orders", [{"data": n, "tag": "customer-7"} for n in range(50)])
        db.append("jobs", [{"data": n} for n in range(200)], config={"type": "queue"})
        db.append("jobs.dead", [{"data": 1, "meta": {"$dead_letter_from": "jobs"}}], config={"type": "queue"})
        db.append("logs", [{"data": 1}])
        db.append("codes", [{"data": "1234", "ttl_ms": 300_000}])
        db.group_fetch("orders", "billing")
        yield {"api": db, "db": db, "records": [{"data": 1}], "my_cursor": 3, "base64": "eA=="}


def test_there_are_examples():
    assert len(examples()) > 40


@pytest.mark.parametrize("code", examples())
def test_an_example(names, code):
    names["jobs"] = names["db"].claim("jobs", "w1")
    if code.startswith("for "):  # an endless loop, of which one turn will do
        code = code.replace("…", "break")
    exec(compile(code, str(PAGE), "exec"), dict(names))
