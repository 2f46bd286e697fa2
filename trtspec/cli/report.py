# SPDX-License-Identifier: Apache-2.0
"""`trtspec report`."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from trtspec.cli.options import Artifact, Json


class Form(str, Enum):
    """What a report is written as."""

    html = "html"
    markdown = "markdown"
    junit = "junit"
    github = "github"


def report(
    artifact: Artifact,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The file, instead of standard output.")] = None,
    with_: Annotated[
        list[Path] | None,
        typer.Option(
            "--with", metavar="FILE", help="What build, plan, baseline, profile, bench or train print with --json."
        ),
    ] = None,
    form: Annotated[Form, typer.Option("--format", help="html, or what a CI job shows.")] = Form.html,
    json: Json = False,
) -> None:
    """Show what is known of an artifact: gates, acceptance, speed-up against load, memory, steps, digests.

    The HTML is one file without scripts that fetches nothing. Documents that bench, profile, baseline and train saved
    of the artifact or its target are found by themselves. Exits with 0 whatever the gates say.

    Example: trtspec report build/quickstart -o report.html
    """
    import sys
    from dataclasses import asdict

    from trtspec.cli.render import note, print_json
    from trtspec.core.errors import TrtspecError
    from trtspec.report.documents import gather
    from trtspec.report.jobs import render_annotations, render_junit, render_markdown
    from trtspec.report.judged import standing, verdict
    from trtspec.report.page import render_page
    from trtspec.report.sections import sections

    if json and out is None:
        raise TrtspecError("--json says what was written", hint="name the file: -o FILE")
    renderers = {
        Form.html: render_page,
        Form.markdown: render_markdown,
        Form.junit: render_junit,
        Form.github: render_annotations,
    }
    facts = gather(artifact, with_ or ())
    text = renderers[form](facts)
    if out is None:
        sys.stdout.write(text)
        return
    _write(out, text)
    if json:
        titles = [section.title for section in sections(facts)]
        print_json(
            {
                "format_version": 1,
                **verdict(facts).as_dict(),
                "report": str(out),
                "verification": standing(facts),
                "sections": titles,
                "documents": [asdict(each) for each in facts.sources],
            }
        )
    else:
        note(verdict(facts).text, verdict(facts).style)
        if kept := [each.name for each in facts.sources if each.is_kept]:
            note(f"shown with what was saved of it here: {', '.join(kept)}")
        note(f"{out}: {len(text.encode()):,} bytes, {standing(facts)}")


def _write(out: Path, text: str) -> None:
    from trtspec.core.errors import TrtspecError
    from trtspec.core.files import replace_file

    try:
        replace_file(out, text.encode())
    except OSError as error:
        raise TrtspecError(f"the report cannot be written: {error.strerror}", where=str(out)) from None


command = report
