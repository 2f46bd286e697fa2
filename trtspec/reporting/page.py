# SPDX-License-Identifier: Apache-2.0
"""A report as one HTML file: no script, nothing fetched, light and dark, readable on a phone and on paper."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from trtspec import __version__
from trtspec.reporting.documents import Facts
from trtspec.reporting.section import Section, Table
from trtspec.reporting.sections import sections, verdict

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
STYLE = """
:root{color-scheme:light dark;--bg:#fff;--fg:#1b1f24;--dim:#57606a;--line:#d0d7de;--ok:#1a7f37;
--bad:#c4232b;--c0:#0a62c9;--c1:#b35900;--c2:#1a7f37;--c3:#8250df;--c4:#c4232b;--c5:#57606a}
@media (prefers-color-scheme:dark){:root{--bg:#0d1117;--fg:#e6edf3;--dim:#9aa5b1;--line:#30363d;--ok:#4cc26b;
--bad:#ff7b80;--c0:#5aa9ff;--c1:#f0a04b;--c2:#4cc26b;--c3:#bb94ff;--c4:#ff7b80;--c5:#9aa5b1}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:62rem;padding:1rem 1.25rem 4rem;background:var(--bg);color:var(--fg);
font:16px/1.5 system-ui,sans-serif}
h1{font-size:1.6rem;margin:.5rem 0}
h2{font-size:1.15rem;margin:2.2rem 0 .5rem;border-top:1px solid var(--line);padding-top:1rem}
p{margin:.4rem 0;max-width:46rem}.dim{color:var(--dim)}.ok{color:var(--ok)}.bad{color:var(--bad)}
.scroll{overflow-x:auto;margin:.6rem 0}
table{border-collapse:collapse;font-size:.875rem;min-width:20rem}
caption{text-align:left;color:var(--dim);padding:.2rem 0}
th,td{padding:.3rem .7rem .3rem 0;border-bottom:1px solid var(--line);text-align:left;vertical-align:top;
overflow-wrap:anywhere}
.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
pre{font-size:.8rem;overflow-x:auto;padding:.8rem;border:1px solid var(--line);border-radius:6px}
svg{width:100%;max-width:46rem;height:auto;display:block}
svg text{font-size:11px;fill:currentColor}.grid{stroke:var(--line)}.mark{stroke:currentColor;stroke-dasharray:4 4}
.whisker{stroke:currentColor;fill:none}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:.3rem 1.2rem;padding:0;margin:.2rem 0;font-size:.85rem}
.swatch{display:inline-block;width:.8em;height:.8em;margin-right:.4em;border-radius:2px}
@media print{body{max-width:none;padding:0}h2{break-after:avoid}svg,tr{break-inside:avoid}.scroll,pre{overflow:visible}}
"""


def render_page(facts: Facts) -> str:
    """Return the whole file."""
    said = verdict(facts)
    tone = {"verified": "ok", "does not hold": "bad"}.get(said, "dim")
    body = "".join(map(_section, sections(facts)))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(facts.name)}: report</title><style>{STYLE}</style></head><body><main>"
        f'<h1>{escape(facts.name)} <span class="{tone}">{said}</span></h1>{body}</main>'
        f'<footer class="dim"><p>trtspec {__version__}</p></footer></body></html>\n'
    )


def _section(section: Section) -> str:
    words = f"<p>{escape(section.words)}</p>" if section.words else ""
    text = f'<pre tabindex="0">{escape(section.text)}</pre>' if section.text else ""
    tables = "".join(map(_table, section.tables))
    return f"<section><h2>{escape(section.title)}</h2>{words}{section.plot}{tables}{text}</section>"


def _table(table: Table) -> str:
    marks = ["n" if place in table.right else "" for place in range(len(table.columns))]
    head = "".join(
        f"<th{_class(mark)} scope=col>{escape(name)}</th>" for name, mark in zip(table.columns, marks, strict=True)
    )
    headed = f"<thead><tr>{head}</tr></thead>" if any(table.columns) else ""
    rows = "".join(f"<tr>{_cells(row, marks)}</tr>" for row in table.rows)
    caption = f"<caption>{escape(table.caption)}</caption>"
    return f'<div class="scroll" tabindex="0"><table>{caption}{headed}<tbody>{rows}</tbody></table></div>'


def _cells(row: Sequence[str], marks: Sequence[str]) -> str:
    first, *rest = row
    cells = "".join(f"<td{_class(mark)}>{escape(cell)}</td>" for cell, mark in zip(rest, marks[1:], strict=True))
    return f"<th scope=row>{escape(first)}</th>{cells}"


def _class(mark: str) -> str:
    return f' class="{mark}"' if mark else ""
