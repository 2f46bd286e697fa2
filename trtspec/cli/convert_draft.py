# SPDX-License-Identifier: Apache-2.0
"""`trtspec convert-draft`: convert a draft head to the format of another project."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trtspec.cli import completing
from trtspec.cli.options import Json
from trtspec.cli.progress import counter
from trtspec.cli.render import print_line, print_result, warn


def convert_draft(
    source: Annotated[
        Path,
        typer.Argument(metavar="SOURCE", help="Directory of an EAGLE-3, P-EAGLE, DFlash, DSpark or Medusa draft."),
    ],
    to: Annotated[
        str, typer.Option(metavar="DIALECT", help="Draft format to write.", autocompletion=completing.dialects)
    ],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="DIR", help="New output directory.")],
    target: Annotated[str, typer.Option(metavar="DIR", help="Target directory, if the draft format needs it.")] = "",
    drop: Annotated[
        list[str] | None,
        typer.Option("--drop", metavar="KEY", help="Drop an unknown key of config.json; repeatable."),
    ] = None,
    json: Json = False,
) -> None:
    """Convert a draft head to the format of another project.

    The source directory has config.json and *.safetensors.

    Example: trtspec convert-draft recipes/models/quickstart-eagle3 --to modelopt -o draft
    """
    from trtspec.methods.draft_formats.convert import convert_draft as convert

    with counter() as on_progress:
        converted = convert(source, to, out, target, frozenset(drop or ()), on_progress)
    draft = converted.draft

    def show() -> None:
        for warning in draft.warnings:
            warn(f"{warning.message}; {warning.hint}")
        sizes = f"{converted.tensors} tensors, {converted.nbytes:,} bytes"
        print_line(f"{out}: {draft.kind} from {draft.dialect} to {to}, {sizes}")

    print_result({"format_version": 1, **converted.as_dict()}, show, as_json=json)


panel = "Drafts"
command = convert_draft
