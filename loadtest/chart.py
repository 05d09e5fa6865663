"""Charts of a run, by matplotlib."""

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from loadtest.growth import Curve
from loadtest.workload import Outcome

OURS, THEIRS = "#2a6f97", "#adb5bd"
PEERS = ("Redis", "NATS", "beanstalkd", "pread", "fdatasync")
WIDTH = 10.0


def _figure(heights: Sequence[float]) -> tuple[Any, list[Any]]:
    """Panels of these heights, one below the other."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    size, ratios = (WIDTH, sum(heights)), {"height_ratios": heights}
    figure, axes = pyplot.subplots(
        len(heights), 1, figsize=size, squeeze=False, constrained_layout=True, gridspec_kw=ratios
    )
    return figure, [row[0] for row in axes]


def draw_outcomes(outcomes: Sequence[Outcome], path: Path) -> None:
    """One panel for each workload: a bar for each row, whiskers from the least to the greatest."""
    figure, axes = _figure([1.0 + 0.24 * len(outcome.rows) for outcome in outcomes])
    for axis, outcome in zip(axes, outcomes, strict=True):
        names = list(reversed(outcome.rows))
        values = [outcome.values(name) for name in names]
        middles = [median(each) for each in values]
        below = [middle - min(each) for middle, each in zip(middles, values, strict=True)]
        above = [max(each) - middle for middle, each in zip(middles, values, strict=True)]
        colours = [THEIRS if name.startswith(PEERS) else OURS for name in names]
        axis.barh(names, middles, xerr=[below, above], color=colours, capsize=2, error_kw={"linewidth": 0.8})
        axis.set_title(f"{outcome.workload.name}: {outcome.workload.title}", loc="left", fontsize=10)
        axis.set_xlabel(outcome.workload.unit, fontsize=8)
        axis.tick_params(labelsize=8)
        axis.xaxis.set_major_formatter("{x:,.10g}")
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)


def draw_curves(curves: Sequence[Curve], path: Path) -> None:
    figure, axes = _figure([3.2] * len(curves))
    for axis, curve in zip(axes, curves, strict=True):
        for name, points in curve.lines.items():
            axis.plot([x for x, _ in points], [y for _, y in points], marker="o", label=name)
        axis.set_xscale("log")
        axis.set_ylim(bottom=0)
        axis.set_title(curve.title, loc="left", fontsize=10)
        axis.set_xlabel(curve.x_label, fontsize=8)
        axis.set_ylabel(curve.y_label, fontsize=8)
        axis.yaxis.set_major_formatter("{x:,.10g}")
        axis.tick_params(labelsize=8)
        axis.legend(fontsize=8)
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)


def draw(folder: Path, outcomes: Sequence[Outcome], curves: Sequence[Curve]) -> list[Path]:
    """The charts there is something for."""
    written = []
    if outcomes:
        written.append(folder / "chart.png")
        draw_outcomes(outcomes, written[-1])
    if curves:
        written.append(folder / "growth.png")
        draw_curves(curves, written[-1])
    return written
