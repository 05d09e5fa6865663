"""Pages of reports: one file of HTML each, which needs nothing else. Pure."""

from collections.abc import Sequence
from html import escape

STYLE = """body{font-family:sans-serif;margin:2em;max-width:1100px}table{border-collapse:collapse;margin:1em 0}
td,th{padding:.2em .8em;text-align:right;border-bottom:1px solid #dee2e6}td:first-child,th:first-child{text-align:left}
.bad{color:#c1121f}.good{color:#2d6a4f}h2{margin-top:2em}"""


def page(title: str, *parts: str) -> str:
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{STYLE}</style></head><body>{''.join(parts)}</body></html>\n"
    )


def table(names: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join("<tr>" + "".join(f"<td>{_cell(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _cell(cell: object) -> str:
    return f"{cell:,}" if isinstance(cell, int) else escape(str(cell))
