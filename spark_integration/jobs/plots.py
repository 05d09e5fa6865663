"""Plots as SVG, by hand: a report is one file that any browser shows, and needs nothing installed. Pure."""

from collections.abc import Mapping, Sequence
from html import escape

WIDTH = 900
STRIP = 46
LINES = 220
LEFT = 150
PRESENT, LOST, ABSENT = "#2a6f97", "#c1121f", "#dee2e6"
COLOURS = ("#2a6f97", "#e09f3e", "#588157", "#7b2cbf", "#9e2a2b", "#6c757d")


def svg(height: float, body: str) -> str:
    size = f'width="{LEFT + WIDTH + 10}" height="{height:g}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">{body}</svg>'


def strips(rows: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    """A strip for each name: its seqs from left to right in even blocks, of each the share that is there and lost."""
    body = ""
    for index, (name, shares) in enumerate(rows.items()):
        top = index * (STRIP + 8)
        body += f'<text x="0" y="{top + STRIP / 2:g}">{escape(name[:24])}<title>{escape(name)}</title></text>'
        body += _rect(LEFT, top, WIDTH, STRIP, ABSENT)
        width = WIDTH / max(1, len(shares))
        for block, (present, lost) in enumerate(shares):
            x = LEFT + block * width
            body += _rect(x, top + STRIP * (1 - present), width, STRIP * present, PRESENT) if present else ""
            body += _rect(x, top, width, STRIP * lost, LOST) if lost else ""
    return svg(len(rows) * (STRIP + 8), body)


def lines(series: Mapping[str, Sequence[tuple[float, float]]], x_name: str, y_name: str) -> str:
    """One line for each name, over the same axes."""
    points = [point for line in series.values() for point in line]
    if not points:
        return svg(20, '<text x="0" y="14">nothing to show</text>')
    low_x, high_x = min(x for x, _ in points), max(x for x, _ in points)
    high_y = max(y for _, y in points) or 1

    def at(x: float, y: float) -> str:
        across = (x - low_x) / (high_x - low_x) if high_x > low_x else 1
        return f"{LEFT + WIDTH * across:.1f},{LINES - LINES * y / high_y:.1f}"

    body = _rect(LEFT, 0, WIDTH, LINES, "#f8f9fa")
    for index, (name, line) in enumerate(series.items()):
        colour = COLOURS[index % len(COLOURS)]
        where = " ".join(at(x, y) for x, y in line)
        body += f'<polyline points="{where}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
        body += f'<text x="0" y="{14 + 16 * index}" fill="{colour}">{escape(name[:24])}</text>'
    body += f'<text x="{LEFT}" y="{LINES + 14}">{escape(x_name)}</text>'
    body += f'<text x="{LEFT + 4}" y="12">{escape(y_name)}, up to {high_y:,.0f}</text>'
    return svg(max(LINES + 20, 16 * len(series) + 14), body)


def bars(values: Sequence[tuple[str, float]], colour: str = PRESENT) -> str:
    """A line of text and a bar for each value."""
    most = max((value for _, value in values), default=0) or 1
    body = ""
    for index, (name, value) in enumerate(values):
        top = index * 18
        body += f'<text x="0" y="{top + 12}">{escape(name[:24])}<title>{escape(name)}</title></text>'
        body += _rect(LEFT, top + 2, (WIDTH - 80) * value / most, 13, colour)
        body += f'<text x="{LEFT + 4 + (WIDTH - 80) * value / most:g}" y="{top + 12}">{value:,.0f}</text>'
    return svg(len(values) * 18 + 4, body)


def _rect(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{x:.2f}" y="{y:.2f}" width="{width:.2f}" height="{height:.2f}" fill="{colour}"/>'
