"""`audit`: whether a topic, its archive and the copies that routers make of it tell the same story.

A topic is looked at up to the head it had when its turn came; its archive and its copies are read after that, so what
they should have is there or on its way. What is found is kept for each topic, so that a run that died goes on with the
next one; the report is written at the end, and from then on another run is another audit.
"""

from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import quote

import msgspec

from spark_integration.jobs.audit_report import page
from spark_integration.jobs.audit_topic import look_at
from spark_integration.jobs.findings import Finding
from spark_integration.jobs.manifest import Archive
from spark_integration.jobs.progress import Place, Tell, to_stderr
from spark_integration.jobs.storage import Storage
from spark_integration.options import Selection
from spark_integration.server import Topics


@dataclass
class AuditSummary:
    topics: int = 0
    records: int = 0
    archived: int = 0
    copies: int = 0
    problems: int = 0
    report: str = ""


def audit(
    spark: Any,
    place: Place,
    selection: Selection,
    report: str,
    *,
    root: str | None = None,
    tell: Tell = to_stderr,
) -> AuditSummary:
    """Looks at the topics, at their archive under `root` if it is given, and at copies of them; writes to `report`."""
    storage, report = Storage(spark), report.rstrip("/")
    if storage.exists(f"{report}/audit.json"):
        storage.remove(f"{report}/topics")
        storage.remove(f"{report}/audit.json")
    held = None if root is None else Archive(storage, root)
    findings = []
    with Topics(place.server) as topics:
        for topic in sorted(topics.bounds(selection)):
            file = f"{report}/topics/{quote(topic, safe='')}.json"
            if storage.exists(file):
                findings.append(msgspec.convert(storage.read_json(file), Finding))
                tell(f"{topic}: looked at by the run before")
                continue
            finding = look_at(spark, place, topics, topic, held)
            storage.write_json(file, asdict(finding))
            findings.append(finding)
            tell(f"{topic}: {finding.log.records} records, {len(finding.problems())} problems")
            for problem in finding.problems():
                tell(f"  {problem}")
    storage.write_text(f"{report}/index.html", page(findings))
    listed = [asdict(finding) | {"problems": finding.problems()} for finding in findings]
    storage.write_json(f"{report}/audit.json", listed)
    return _summary(findings, report)


def _summary(findings: list[Finding], report: str) -> AuditSummary:
    archives = [finding.archived for finding in findings if finding.archived is not None]
    return AuditSummary(
        topics=len(findings),
        records=sum(finding.log.records for finding in findings),
        archived=sum(archived.log.records for archived in archives),
        copies=sum(copied.log.records for finding in findings for copied in finding.copies),
        problems=sum(len(finding.problems()) for finding in findings),
        report=f"{report}/index.html",
    )
