# SPDX-License-Identifier: Apache-2.0
"""`trtspec inspect`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trtspec.cli.options import Json


def inspect(
    path: Annotated[Path, typer.Argument(help="A source checkpoint, a converted one, or an artifact.")],
    json: Json = False,
) -> None:
    """Say what a checkpoint or an artifact is, from its headers and documents alone.

    Example: trtspec inspect recipes/models/quickstart-target
    """
    from trtspec.cli.render import print_json, show_table
    from trtspec.inspection import inspect_path

    document = {"format_version": 1, **inspect_path(path)}
    if json:
        print_json(document)
    rows = [(key.replace("_", " "), _words(value)) for key, value in document.items() if key != "format_version"]
    show_table("", ("", ""), rows)


def _words(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_words(each)}" for key, each in value.items()) or "none"
    if isinstance(value, list):
        return "\n".join(_words(each) for each in value) or "none"
    return f"{value:,}" if type(value) is int else str(value)


command = inspect
