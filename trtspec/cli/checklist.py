# SPDX-License-Identifier: Apache-2.0
"""`trtspec checklist`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtspec.cli.options import Artifact, Json

if TYPE_CHECKING:
    from trtspec.report.readiness.items import ReadinessItem

COLOURS = {"done": "green", "missing": "red", "not needed": "dim"}


def checklist(
    artifact: Artifact,
    with_: Annotated[
        list[Path] | None,
        typer.Option(
            "--results", metavar="FILE", help="Saved --json output of baseline, bench or profile; repeatable."
        ),
    ] = None,
    prometheus: Annotated[
        str | None, typer.Option(metavar="URL", help="Query this Prometheus server for metrics and alerts.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 112 if an item is missing.")] = False,
    json: Json = False,
) -> None:
    """Check an artifact's production readiness.

    Shows the commands for missing items. Results of `trtspec baseline` for the artifact are found automatically.

    Example: trtspec checklist build/quickstart --results profile.json
    """
    from trtspec.cli.render import print_json
    from trtspec.core.errors import GateNotMet
    from trtspec.report.monitoring.prometheus import Prometheus
    from trtspec.report.readiness.facts import gather
    from trtspec.report.readiness.items import check, checklist_document, missing_rows

    facts = gather(artifact, with_ or (), Prometheus(prometheus) if prometheus else None)
    rows = check(facts)
    if json:
        print_json(checklist_document(facts, rows))
    else:
        show(rows, str(artifact))
    raise typer.Exit(GateNotMet.exit_code if strict and missing_rows(rows) else 0)


def show(rows: Sequence[ReadinessItem], artifact: str) -> None:
    """Show the rows, the commands for the missing items, and their number."""
    from trtspec.cli.layout import pluralize
    from trtspec.cli.render import print_command, print_line, show_table
    from trtspec.report.readiness.items import missing_rows

    show_table("", ("", "state", "evidence"), [(row.name, row.state, row.evidence) for row in rows])
    open_ = missing_rows(rows)
    for row in open_:
        print_command(row.name, row.command)
    verdict = f"{pluralize(len(open_), 'item')} missing" if open_ else "nothing is missing"
    print_line(f"{artifact}: {verdict}", "red" if open_ else "green")


panel = "Decide"
command = checklist
