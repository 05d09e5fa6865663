"""Metrics as Prometheus reads them, and as JSON."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Family:
    """One metric name with its samples: (labels, value)."""

    name: str
    kind: str
    help: str
    samples: list[tuple[Mapping[str, object], float]] = field(default_factory=list)

    def add(self, value: float, **labels: object) -> "Family":
        self.samples.append((labels, value))
        return self


def to_text(families: list[Family]) -> bytes:
    lines: list[str] = []
    for family in families:
        lines.append(f"# HELP {family.name} {family.help}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        lines += [_line(family, labels, value) for labels, value in family.samples]
    return ("\n".join(lines) + "\n").encode()


def _line(family: Family, labels: Mapping[str, object], value: float) -> str:
    name = family.name
    if family.kind == "histogram":
        name += "_" + str(labels.get("", "bucket"))
    inside = ",".join(f'{key}="{text}"' for key, text in labels.items() if key)  # no value here needs escaping
    return f"{name}{{{inside}}} {value}" if inside else f"{name} {value}"


def to_json(families: list[Family]) -> dict[str, Any]:
    """One member a name: a number, or for labelled samples an object by label."""
    members: dict[str, Any] = {}
    for family in families:
        if len(family.samples) == 1 and not family.samples[0][0]:
            members[family.name] = family.samples[0][1]
        elif family.kind == "histogram":
            members[family.name] = _histograms(family)
        else:
            members[family.name] = {",".join(map(str, labels.values())): value for labels, value in family.samples}
    return members


def _histograms(family: Family) -> dict[str, Any]:
    """One, or for each value of its label one."""
    found: dict[str, Any] = {}
    for labels, value in family.samples:
        label = next((str(text) for key, text in labels.items() if key not in ("", "le")), "")
        one = found.setdefault(label, {"buckets": {}})
        if "le" in labels:
            one["buckets"][str(labels["le"])] = value
        else:
            one[str(labels[""])] = value
    return found.get("", {}) if set(found) <= {""} else found
