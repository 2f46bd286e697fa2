# SPDX-License-Identifier: Apache-2.0
"""`trtspec report`: write a report on an artifact."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer

from trtspec.cli.options import Artifact, Json
from trtspec.cli.render import note, print_result, write_output
from trtspec.core.errors import TrtspecError


def report(
    artifact: Artifact,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Output file (default: stdout).")] = None,
    with_: Annotated[
        list[Path] | None,
        typer.Option("--results", metavar="FILE", help="Saved --json output of another command; repeatable."),
    ] = None,
    form: Annotated[
        Literal["html", "markdown", "junit", "github", "capacity"],
        typer.Option(
            "--format",
            help="Output format; markdown, junit and github are for CI jobs, capacity is for capacity planners.",
        ),
    ] = "html",
    json: Json = False,
) -> None:
    """Write a report on an artifact.

    Contents: gates, acceptance, speed-up by load, memory, steps and digests. The HTML report is a single file without
    scripts or external resources. Saved results of bench, profile, baseline and train for the artifact or its target
    are found automatically; --results adds output of build, plan, baseline, profile, bench or train. Exits with 0 even
    if a gate fails. The format capacity has the measured acceptance for Dynamo's planner and AISimulate.

    Example: trtspec report build/quickstart -o report.html
    """
    from trtspec.report.capacity_planners import render_capacity
    from trtspec.report.evidence import gather, report_decision, verification_summary
    from trtspec.report.formats import render_annotations, render_junit, render_markdown, render_page
    from trtspec.report.sections import sections

    if json and out is None:
        raise TrtspecError("--json requires --out", hint="add -o FILE")
    renderers = {
        "html": render_page,
        "markdown": render_markdown,
        "junit": render_junit,
        "github": render_annotations,
        "capacity": render_capacity,
    }
    facts = gather(artifact, with_ or ())
    text = renderers[form](facts)
    if out is None:
        sys.stdout.write(text)
        return
    write_output(out, text, "the report")
    verdict, verification = report_decision(facts), verification_summary(facts)
    document = {
        "format_version": 1,
        **verdict.as_dict(),
        "report": str(out),
        "verification": verification,
        "sections": [section.title for section in sections(facts)],
        "documents": [asdict(each) for each in facts.sources],
    }

    def show() -> None:
        note(verdict.text, verdict.style)
        if kept := [each.name for each in facts.sources if each.is_kept]:
            note(f"includes results saved on this machine: {', '.join(kept)}")
        note(f"{out}: {len(text.encode()):,} bytes, {verification}")

    print_result(document, show, as_json=json)


panel = "Decide"
command = report
