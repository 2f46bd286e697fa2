# SPDX-License-Identifier: Apache-2.0
"""`trtspec readiness`: check an artifact's production readiness."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtspec.cli.layout import pluralize
from trtspec.cli.options import Artifact, Json
from trtspec.cli.render import print_command, print_line, print_result, show_table
from trtspec.core.errors import GateNotMet

if TYPE_CHECKING:
    from trtspec.report.readiness import ReadinessItem


def readiness(
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

    Example: trtspec readiness build/quickstart --results profile.json
    """
    from trtspec.report.monitoring.prometheus import Prometheus
    from trtspec.report.readiness import check, gather, missing_items, readiness_document

    facts = gather(artifact, with_ or (), Prometheus(prometheus) if prometheus else None)
    items = check(facts)
    missing = missing_items(items)
    print_result(readiness_document(facts, items), lambda: show(items, missing, str(artifact)), as_json=json)
    raise typer.Exit(GateNotMet.exit_code if strict and missing else 0)


def show(items: Mapping[str, ReadinessItem], missing: Mapping[str, ReadinessItem], artifact: str) -> None:
    show_table("", ("", "state", "evidence"), [(name, item.state, item.evidence) for name, item in items.items()])
    for name, item in missing.items():
        print_command(name, item.command)
    verdict = f"{pluralize(len(missing), 'item')} missing" if missing else "nothing is missing"
    print_line(f"{artifact}: {verdict}", "red" if missing else "green")


panel = "Decide"
command = readiness
