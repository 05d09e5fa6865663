"""Tables and files of a run."""

import json

from loadtest import chart, report
from loadtest.growth import Curve
from loadtest.tools import TOOLS, Tools
from loadtest.workload import Aim, Outcome, Sample, Workload

AIMS = (Aim("against them", "ours", 2.0, "theirs"), Aim("against nobody", "ours", 2.0, "absent"))
WORKLOAD = Workload("w9", "things", "things/s", lambda bench, stack: (), AIMS, note="A note.")
OUTCOME = Outcome(
    WORKLOAD,
    {
        "ours": [Sample(3000.0, {"p50": 1.5}), Sample(3300.0, {"p50": 1.25})],
        "theirs": [Sample(1000.0), Sample(1100.0)],
    },
)
CURVE = Curve("growth", "topics", "s", {"line": [(1, 2.0), (10, 2.5)]})


def test_the_markdown_table_has_medians_spread_and_verdicts():
    text = report.markdown([OUTCOME], {"cores": "2"})
    assert "| ours | 3,150 | 10% | 1.38 |" in text
    assert "| theirs | 1,050 | 10% |  |" in text
    assert "| w9: against them | ≥ 2 × | 3.00 × | 0% | met |" in text
    assert "| w9: against nobody | ≥ 2 × | not judged |  |  |" in text


def test_the_json_file_has_every_sample(tmp_path):
    results, table = report.write(tmp_path / "new", [OUTCOME], [CURVE], {"cores": "2"})
    seen = json.loads(results.read_text())
    [workload] = seen["workloads"]
    assert workload["rows"]["ours"][1] == {"value": 3300.0, "details": {"p50": 1.25}}
    assert [aim["met"] for aim in workload["aims"]] == [True, None]
    assert seen["growth"][0]["lines"] == {"line": [[1, 2.0], [10, 2.5]]}
    assert table.read_text() == report.markdown([OUTCOME], {"cores": "2"})


def test_charts_are_drawn(tmp_path):
    for path in chart.draw(tmp_path, [OUTCOME], [CURVE]):
        assert path.read_bytes().startswith(b"\x89PNG")


def test_what_is_missing_is_told_with_how_to_get_it():
    without = Tools(without=[tool.name for tool in TOOLS])
    assert [tool.name for tool in without.missing()] == [tool.name for tool in TOOLS]
    assert all(tool.how and tool.lacks for tool in TOOLS)
    assert not without.has("redis")
    assert without.has()
