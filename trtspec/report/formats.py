# SPDX-License-Identifier: Apache-2.0
"""Output formats of a report: an HTML page, a Markdown summary, JUnit XML and GitHub annotations.

The page is a single file without scripts or external resources, for light and dark screens and for print.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import groupby
from pathlib import Path
from xml.etree import ElementTree

from trtspec.bench.decision import ALONE, PAYS, SHIP
from trtspec.bench.gates import UNDECIDED
from trtspec.core.installation import __version__
from trtspec.report.evidence import ELSEWHERE, ReportInputs, contradiction, report_decision, verification_summary
from trtspec.report.plots import minify_css, style
from trtspec.report.section import Figure, Section, Table
from trtspec.report.sections import sections

LAYOUT = Path(__file__).with_name("page.css")
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
UNFIT = {0x9, 0xA, 0xD}  # unprintable characters that XML allows


def render_page(facts: ReportInputs) -> str:
    """Return the report as a self-contained HTML page."""
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


def render_markdown(facts: ReportInputs) -> str:
    """Return the report as Markdown for a job summary."""
    parts = [
        f"# {_plain(facts.name)}",
        f"**{_plain(report_decision(facts).text)}**",
        _plain(verification_summary(facts)),
    ]
    for section in sections(facts):
        parts.append(f"## {_plain(section.title)}")
        parts += [_plain(section.words)] if section.words else []
        parts += ["\n".join(map(_markdown_figure, section.figures))] if section.figures else []
        parts += [_markdown_table(table) for table in section.tables]
        parts += [f"```yaml\n{section.text.replace('```', '')}```"] if section.text else []
    return "\n\n".join(parts) + "\n"


def render_junit(facts: ReportInputs) -> str:
    """Return the report as JUnit XML with a test case for each check.

    A skipped check becomes a skipped test. Without a trusted verification, the suite has an error. An undecided check
    is a failure or skipped, depending on `undecided_policy`. The decision is in the properties and the output of the
    suite.
    """
    found, judged = facts.verification, report_decision(facts)
    suite = ElementTree.Element("testsuite", name=_xml(facts.name))
    properties = ElementTree.SubElement(suite, "properties")
    for name, value in {**judged.as_dict(), "verification": verification_summary(facts)}.items():
        ElementTree.SubElement(properties, "property", name=name, value=_xml(value))
    for check in found.checks if found else ():
        case = ElementTree.SubElement(suite, "testcase", classname=_xml(facts.name), name=_xml(check.name))
        case.set("time", f"{check.seconds:.3f}")
        if not check.ok:
            ElementTree.SubElement(case, "failure", message=_xml(check.detail))
        elif check.state == UNDECIDED:
            ElementTree.SubElement(case, "skipped", message=_xml(f"undecided: {check.detail}"))
        against = contradiction(facts, check)
        details = f"{check.detail}; contradicted: {against}" if against else check.detail
        ElementTree.SubElement(case, "system-out").text = _xml(details)
    for each in found.left_out if found else ():
        case = ElementTree.SubElement(suite, "testcase", classname=_xml(facts.name), name=_xml(each.name))
        ElementTree.SubElement(case, "skipped", message=_xml(each.why))
    if found is None or facts.elsewhere:
        case = ElementTree.SubElement(suite, "testcase", classname=_xml(facts.name), name="verified")
        message = ELSEWHERE if facts.elsewhere else "the artifact has not been verified"
        ElementTree.SubElement(case, "error", message=message)
    ElementTree.SubElement(suite, "system-out").text = _xml(judged.text)
    suite.set("tests", str(len(suite.findall("testcase"))))
    suite.set("time", f"{sum(check.seconds for check in found.checks) if found else 0:.3f}")
    suite.set("failures", str(len(suite.findall("testcase/failure"))))
    suite.set("errors", str(len(suite.findall("testcase/error"))))
    suite.set("skipped", str(len(suite.findall("testcase/skipped"))))
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(suite, encoding="unicode") + "\n"


def render_annotations(facts: ReportInputs) -> str:
    """Return GitHub workflow commands for the decision and for each failed, undecided or contradicted check."""
    judged, name = report_decision(facts), facts.name
    found = None if facts.elsewhere else facts.verification
    level = "notice" if judged.decision in (SHIP, PAYS, ALONE) else "warning"
    lines = [_command(level, name, judged.text)]
    if found is None:
        lines.append(_command("warning", name, ELSEWHERE if facts.elsewhere else "the artifact has not been verified"))
    for check in found.checks if found else ():
        title = f"{name}: {check.name}"
        if not check.ok or check.state == UNDECIDED:
            lines.append(_command("warning" if check.ok else "error", title, check.detail))
        if against := contradiction(facts, check):
            lines.append(_command("warning", title, f"{check.state}, but {against}"))
    if found and found.ok:
        lines.append(_command("notice", name, verification_summary(facts)))
    return "".join(lines)


def _command(level: str, title: str, text: str) -> str:
    return f"::{level} title={_property(title)}::{_data(text)}\n"


def _markdown_figure(figure: Figure) -> str:
    return f"* **{_plain(figure.value)}** {_plain(figure.name)}" + (f" ({_plain(figure.of)})" if figure.of else "")


def _markdown_table(table: Table) -> str:
    head = "| " + " | ".join(map(_cell, table.columns)) + " |"
    rule = "|" + "|".join("---:" if place in table.right else "---" for place in range(len(table.columns))) + "|"
    rows = ["| " + " | ".join(map(_cell, row)) + " |" for row in table.rows]
    return "\n".join([head, rule, *rows])


def _plain(text: str) -> str:
    """Escape a text for Markdown and join its lines."""
    kept = "".join(f"\\{char}" if char in "\\`*_[]<>#|" else char for char in text)
    return " ".join(kept.split())


def _cell(text: str) -> str:
    return _plain(text) or " "


def _xml(text: str) -> str:
    """Remove the characters that XML does not allow from a text."""
    return "".join(char for char in text if char.isprintable() or ord(char) in UNFIT)


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
