# SPDX-License-Identifier: Apache-2.0
"""`trtspec inspect`."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from trtspec.cli.options import Json


class Weights(Enum):
    """The recipe's words for it."""

    NONE = "none"
    FP8 = "fp8"
    FP8_ROWWISE = "fp8_rowwise"


def inspect(
    checkpoint: Annotated[
        str, typer.Argument(metavar="PATH", help="A checkpoint's directory, an artifact's, or a hub id, ID@COMMIT.")
    ],
    tensor: Annotated[int, typer.Option(min=1, max=64, help="Tensor parallel ranks a source would be divided in.")] = 1,
    pipeline: Annotated[int, typer.Option(min=1, max=64, help="Pipeline stages it would be divided in.")] = 1,
    weights: Annotated[Weights, typer.Option(help="How its linear layers would be stored.")] = Weights.NONE,
    json: Json = False,
) -> None:
    """Say what a checkpoint or an artifact is, from its headers and documents alone.

    Example: trtspec inspect recipes/models/quickstart-target --tensor 2 --weights fp8
    """
    from trtspec.checkpoints.quant.scheme import Scheme
    from trtspec.checkpoints.sharding import ParallelMapping
    from trtspec.cli.render import print_json, show_table
    from trtspec.planning.inspection import inspect_model

    document = {
        "format_version": 1,
        **inspect_model(checkpoint, ParallelMapping(tensor, pipeline), Scheme(weights.value)),
    }
    if json:
        print_json(document)
    else:
        rows = [(key.replace("_", " "), _words(value)) for key, value in document.items() if key != "format_version"]
        show_table("", ("", ""), rows)


def _words(value: object, between: str = "\n") -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_words(each, ' + ')}" for key, each in value.items()) or "none"
    if isinstance(value, list):
        return between.join(_words(each) for each in value) or "none"
    return f"{value:,}" if type(value) is int else str(value)


command = inspect
