# SPDX-License-Identifier: Apache-2.0
"""`trtspec inspect`: describe a checkpoint or an artifact."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from trtspec.cli.options import Json
from trtspec.cli.render import print_result, show_table


def inspect(
    checkpoint: Annotated[
        str, typer.Argument(metavar="PATH", help="Checkpoint or artifact directory, or hub id (ID or ID@COMMIT).")
    ],
    tensor: Annotated[int, typer.Option("--tp", min=1, max=64, help="Tensor parallel size to assume.")] = 1,
    pipeline: Annotated[int, typer.Option("--pp", min=1, max=64, help="Pipeline parallel size to assume.")] = 1,
    weights: Annotated[
        Literal["none", "fp8", "fp8_rowwise"], typer.Option(help="Weight format of linear layers to assume.")
    ] = "none",
    json: Json = False,
) -> None:
    """Describe a checkpoint or an artifact.

    Only headers and documents are read.

    Example: trtspec inspect recipes/models/quickstart-target --tp 2 --weights fp8
    """
    from trtspec.checkpoints.quant_scheme import Scheme
    from trtspec.checkpoints.sharding import ParallelMapping
    from trtspec.planning.inspection import inspect_model

    found = inspect_model(checkpoint, ParallelMapping(tensor, pipeline), Scheme(weights))
    rows = [(key.replace("_", " "), _format(value)) for key, value in found.items()]
    print_result({"format_version": 1, **found}, lambda: show_table("", ("", ""), rows), as_json=json)


def _format(value: object, between: str = "\n") -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_format(each, ' + ')}" for key, each in value.items()) or "none"
    if isinstance(value, list):
        return between.join(_format(each) for each in value) or "none"
    return f"{value:,}" if type(value) is int else str(value)


panel = "Build"
command = inspect
