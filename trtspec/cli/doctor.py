# SPDX-License-Identifier: Apache-2.0
"""`trtspec doctor`: check what trtspec can use on this machine."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from trtspec.cli.options import Json
from trtspec.cli.render import print_line, print_result, show_table

if TYPE_CHECKING:
    from trtspec.core.installation import DoctorCheck


def doctor(json: Json = False) -> None:
    """Check what trtspec can use on this machine.

    Covers hardware and software. Exits with 1 if a requirement is missing.

    Example: trtspec doctor
    """
    from trtspec.planning.doctor import probe_machine

    findings = probe_machine()
    fine = all(finding.ok for finding in findings)
    document = {"format_version": 1, "ok": fine, "findings": [asdict(finding) for finding in findings]}
    print_result(document, lambda: show(findings), as_json=json)
    raise typer.Exit(0 if fine else 1)


def show(findings: list[DoctorCheck]) -> None:
    rows = [(each.name, "ok" if each.ok else "MISSING", each.detail) for each in findings]
    show_table("", ("", "", "details"), rows)
    for finding in findings:
        if not finding.ok and finding.hint:
            print_line(f"{finding.name}: {finding.hint}", "yellow")
    missing = [finding.name for finding in findings if not finding.ok]
    print_line(f"missing: {', '.join(missing)}" if missing else "nothing is missing", "red" if missing else "green")


panel = "Machine"
command = doctor
