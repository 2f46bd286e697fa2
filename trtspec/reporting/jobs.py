# SPDX-License-Identifier: Apache-2.0
"""A report as CI jobs show it: Markdown for a summary, JUnit for a list of tests, GitHub's annotations for a diff."""

from __future__ import annotations

from xml.etree import ElementTree

from trtspec.reporting.documents import ELSEWHERE, Facts
from trtspec.reporting.section import Figure, Table
from trtspec.reporting.sections import sections, verdict

UNFIT = {0x9, 0xA, 0xD}


def render_markdown(facts: Facts) -> str:
    """Return a job's summary."""
    parts = [f"# {_plain(facts.name)}: {verdict(facts)}"]
    for section in sections(facts):
        parts.append(f"## {_plain(section.title)}")
        parts += [_plain(section.words)] if section.words else []
        parts += ["\n".join(map(_figure, section.figures))] if section.figures else []
        parts += [_table(table) for table in section.tables]
        parts += [f"```yaml\n{section.text.replace('```', '')}```"] if section.text else []
    return "\n\n".join(parts) + "\n"


def render_junit(facts: Facts) -> str:
    """Return a test for each check; one that was left out is skipped, and without a verification there is an error."""
    found = facts.verification
    suite = ElementTree.Element("testsuite", name=_xml(facts.name))
    for check in found.checks if found else ():
        case = ElementTree.SubElement(suite, "testcase", classname=_xml(facts.name), name=_xml(check.name))
        if not check.ok:
            ElementTree.SubElement(case, "failure", message=_xml(check.detail))
    for each in found.left_out if found else ():
        case = ElementTree.SubElement(suite, "testcase", classname=_xml(facts.name), name=_xml(each.name))
        ElementTree.SubElement(case, "skipped", message=_xml(each.why))
    if found is None or facts.elsewhere:
        case = ElementTree.SubElement(suite, "testcase", classname=_xml(facts.name), name="verified")
        message = ELSEWHERE if facts.elsewhere else "the artifact was not verified as it lies here"
        ElementTree.SubElement(case, "error", message=message)
    suite.set("tests", str(len(suite)))
    suite.set("failures", str(len(suite.findall("testcase/failure"))))
    suite.set("errors", str(len(suite.findall("testcase/error"))))
    suite.set("skipped", str(len(suite.findall("testcase/skipped"))))
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(suite, encoding="unicode") + "\n"


def render_annotations(facts: Facts) -> str:
    """Return a workflow command for each check that fails, or for a verification that nobody made."""
    if facts.verification is None:
        return f"::warning title={_property(facts.name)}::the artifact was not verified as it lies here\n"
    if facts.elsewhere:
        return f"::warning title={_property(facts.name)}::{ELSEWHERE}\n"
    lines = [
        f"::error title={_property(f'{facts.name}: {check.name}')}::{_data(check.detail)}"
        for check in facts.verification.checks
        if not check.ok
    ]
    return "".join(f"{line}\n" for line in lines or [f"::notice title={_property(facts.name)}::all gates hold"])


def _figure(figure: Figure) -> str:
    return f"* **{_plain(figure.value)}** {_plain(figure.name)}" + (f" ({_plain(figure.of)})" if figure.of else "")


def _table(table: Table) -> str:
    head = "| " + " | ".join(map(_cell, table.columns)) + " |"
    rule = "|" + "|".join("---:" if place in table.right else "---" for place in range(len(table.columns))) + "|"
    rows = ["| " + " | ".join(map(_cell, row)) + " |" for row in table.rows]
    return "\n".join([head, rule, *rows])


def _plain(text: str) -> str:
    """Return a text that Markdown takes as it is."""
    kept = "".join(f"\\{char}" if char in "\\`*_[]<>#|" else char for char in text)
    return " ".join(kept.split())


def _cell(text: str) -> str:
    return _plain(text) or " "


def _xml(text: str) -> str:
    """Return a text without what XML cannot hold."""
    return "".join(char for char in text if char.isprintable() or ord(char) in UNFIT)


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
