# SPDX-License-Identifier: Apache-2.0
"""`trtspec verify`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trtspec.cli.options import Artifact, Json


def verify(
    artifact: Artifact,
    source: Annotated[Path | None, typer.Option(help="Where the target's source lies now, if it was moved.")] = None,
    prompts: Annotated[Path | None, typer.Option(help="A .jsonl of prompts, instead of the artifact's own.")] = None,
    max_tokens: Annotated[int, typer.Option(help="New tokens a prompt.", min=1)] = 64,
    json: Json = False,
) -> None:
    """Prove that an artifact says what its target says, and that its gates hold.

    Example: trtspec verify build/quickstart
    """
    from trtspec.cli.progress import counter
    from trtspec.cli.render import print_json, say, show_table
    from trtspec.measure.verify import verify_artifact

    with counter() as on_progress:
        verification = verify_artifact(
            artifact, source=source, prompts_file=prompts, max_tokens=max_tokens, on_progress=on_progress
        )
    if json:
        print_json(verification.as_dict())
    else:
        rows = [(check.name, "holds" if check.ok else "FAILS", check.detail) for check in verification.checks]
        show_table("", ("check", "", "what was found"), rows)
        say(f"{artifact}: {'verified' if verification.ok else 'NOT verified'}", "green" if verification.ok else "red")
    raise typer.Exit(verification.failure.exit_code if verification.failure else 0)


command = verify
