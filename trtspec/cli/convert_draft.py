# SPDX-License-Identifier: Apache-2.0
"""`trtspec convert-draft`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trtspec.cli import completing
from trtspec.cli.options import Json


def convert_draft(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="SOURCE",
            help="The directory of an EAGLE-3, P-EAGLE, DFlash, DSpark or Medusa draft: config.json and *.safetensors.",
        ),
    ],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="DIALECT",
            help="Whose format to write.",
            autocompletion=completing.dialects,
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="A directory that is not there yet.")],
    target: Annotated[
        str, typer.Option(metavar="DIR", help="The target's directory, for what the dialect wants of it.")
    ] = "",
    drop: Annotated[
        list[str] | None,
        typer.Option("--drop", metavar="KEY", help="Leave a key of config.json out that no dialect knows; repeatable."),
    ] = None,
    json: Json = False,
) -> None:
    """Write a draft head in the format of another project, so that another engine reads it.

    Example: trtspec convert-draft recipes/models/quickstart-eagle3 --to modelopt -o draft
    """
    from trtspec.cli.progress import counter
    from trtspec.cli.render import note, print_json, say
    from trtspec.methods.draft_formats.convert import convert_draft as convert

    with counter() as on_progress:
        converted = convert(source, to, out, target, frozenset(drop or ()), on_progress)
    if json:
        print_json({"format_version": 1, **converted.as_dict()})
        return
    for warning in converted.draft.warnings:
        note(f"warning: {warning.message}; {warning.hint}", "yellow")
    draft = converted.draft
    say(f"{out}: {draft.kind} from {draft.dialect} to {to}, {converted.tensors} tensors, {converted.nbytes:,} bytes")


command = convert_draft
