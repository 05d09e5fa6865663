"""The report of an audit as one page of HTML. Pure."""

from collections.abc import Iterator, Sequence
from html import escape

from spark_integration.jobs import html, plots
from spark_integration.jobs.findings import Finding, Log
from spark_integration.jobs.html import table

COUNTS = ("log", "head", "records", "lost", "deleted", "repeated", "out of order")


def page(findings: Sequence[Finding]) -> str:
    problems = sum(len(finding.problems()) for finding in findings)
    said = f'<p class="bad">{problems} problems</p>' if problems else '<p class="good">No problems.</p>'
    sections = "".join(_section(finding) for finding in findings)
    return html.page("Audit", f"<h1>Audit of {len(findings)} topics</h1>", said, sections)


def _section(finding: Finding) -> str:
    logs = list(_logs(finding))
    listed = "".join(f'<li class="bad">{escape(problem)}</li>' for problem in finding.problems())
    return (
        f"<h2>{escape(finding.topic)}</h2>"
        + (f"<ul>{listed}</ul>" if listed else '<p class="good">No problems.</p>')
        + table(COUNTS, [_counts(log) for log in logs])
        + _archive(finding)
        + _copies(finding)
        + _lost(logs)
        + "<p>Seqs from 1 to the head: there (blue), told to be lost (red), deleted (grey).</p>"
        + plots.strips({log.name: shares(log) for log in logs})
        + "<p>Records over time.</p>"
        + plots.lines({log.name: _growth(log) for log in logs}, "time", "records")
    )


def _logs(finding: Finding) -> Iterator[Log]:
    yield finding.log
    if finding.archived is not None:
        yield finding.archived.log
    yield from (copied.log for copied in finding.copies)


def _counts(log: Log) -> list[object]:
    return [log.name, log.head, log.records, log.lost_seqs, max(0, log.absent), log.repeated, log.unordered]


def _archive(finding: Finding) -> str:
    found = finding.archived
    if found is None:
        return ""
    names = ("archive", "missing", "changed", "not in the topic any more", "uncovered seqs", "ranges without files")
    gaps = sum(last - first + 1 for first, last in found.gaps)
    row = [found.log.name, found.missing, found.changed, found.only_here, gaps, len(found.without_files)]
    return table(names, [row])


def _copies(finding: Finding) -> str:
    names = ("copy", "matched", "missing", "on their way", "doubled", "without a record", "out of order")
    rows: list[list[object]] = [
        [one.log.name, one.matched, one.missing, one.waiting, one.doubled, one.alone, one.unordered]
        for one in finding.copies
    ]
    return table(names, rows) if rows else ""


def _lost(logs: Sequence[Log]) -> str:
    rows: list[list[object]] = [[log.name, one.first, one.last, one.reason] for log in logs for one in log.lost]
    return table(("lost", "first seq", "last seq", "reason"), rows) if rows else ""


def shares(log: Log) -> list[tuple[float, float]]:
    """Of every block of seqs: the share that is there, and the share that is lost."""
    there = {block.first: block.records - block.repeated for block in log.blocks}
    made = []
    for first in range(1, log.head + 1, log.block_size):
        last = min(log.head, first + log.block_size - 1)
        lost = sum(max(0, min(one.last, last) - max(one.first, first) + 1) for one in log.lost)
        size = last - first + 1
        made.append((there.get(first, 0) / size, lost / size))
    return made


def _growth(log: Log) -> list[tuple[float, float]]:
    points, so_far = [], 0
    for block in log.blocks:
        points.append((float(block.first_ts), float(so_far)))
        so_far += block.records
        points.append((float(block.last_ts), float(so_far)))
    return points
