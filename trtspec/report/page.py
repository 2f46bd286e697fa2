# SPDX-License-Identifier: Apache-2.0
"""Report as a single HTML file without scripts or external resources, for light and dark screens and for print."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import groupby
from pathlib import Path

from trtspec.core.installation import __version__
from trtspec.report.evidence import ReportInputs, report_decision, verification_summary
from trtspec.report.plots import minify_css, style
from trtspec.report.section import Figure, Section, Table
from trtspec.report.sections import sections

LAYOUT = Path(__file__).with_name("page.css")
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def render_page(facts: ReportInputs) -> str:
    judged, checks = report_decision(facts), verification_summary(facts)
    tone = {"green": "ok", "red": "bad"}.get(judged.style, "dim")
    is_bad = "does not hold" in checks
    body = "".join(
        ('<div class="cards">{}</div>' if plotted else "{}").format("".join(map(_section, group)))
        for plotted, group in groupby(sections(facts), key=lambda section: bool(section.plot))
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(facts.name)}: report</title><style>{style()}{minify_css(LAYOUT)}</style></head><body><main>"
        f'<h1>{escape(facts.name)}</h1><p class="verdict {tone}"><strong>{escape(judged.text)}</strong></p>'
        f'<p><span class="badge {"bad" if is_bad else "dim"}">{escape(checks)}</span></p>{body}</main>'
        f'<footer class="dim"><p>trtspec {__version__}</p></footer></body></html>\n'
    )


def _section(section: Section) -> str:
    words = f"<p>{escape(section.words)}</p>" if section.words else ""
    text = f'<pre tabindex="0">{escape(section.text)}</pre>' if section.text else ""
    tables = "".join(map(_table, section.tables))
    title = f"<h2>{escape(section.title)}</h2>"
    return f"<section>{title}{words}{_figures(section.figures)}{section.plot}{tables}{text}</section>"


def _figures(figures: Sequence[Figure]) -> str:
    items = "".join(
        f"<div><dt>{escape(each.name)}<small>{escape(each.of)}</small></dt><dd>{escape(each.value)}</dd></div>"
        for each in figures
    )
    return f'<dl class="figures">{items}</dl>' if items else ""


def _table(table: Table) -> str:
    marks = [
        "n" if place in table.right else "d" if place in table.digests else "" for place in range(len(table.columns))
    ]
    head = "".join(
        f"<th{_class(mark)} scope=col>{escape(name)}</th>" for name, mark in zip(table.columns, marks, strict=True)
    )
    headed = f"<thead><tr>{head}</tr></thead>" if any(table.columns) else ""
    rows = "".join(
        f"<tr{_class('bad' if number in table.bad else '')}>{_cells(row, marks)}</tr>"
        for number, row in enumerate(table.rows)
    )
    caption = f"<caption>{escape(table.caption)}</caption>"
    return f'<div class="scroll" tabindex="0"><table>{caption}{headed}<tbody>{rows}</tbody></table></div>'


def _cells(row: Sequence[str], marks: Sequence[str]) -> str:
    first, *rest = row
    cells = "".join(f"<td{_class(mark)}>{escape(cell)}</td>" for cell, mark in zip(rest, marks[1:], strict=True))
    return f"<th scope=row>{escape(first)}</th>{cells}"


def _class(mark: str) -> str:
    return f' class="{mark}"' if mark else ""
