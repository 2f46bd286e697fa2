# SPDX-License-Identifier: Apache-2.0
"""`trtspec datasets`: summarize a prompt file or list the shipped prompt sets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from trtspec.cli.layout import pluralize
from trtspec.cli.options import Json
from trtspec.cli.render import print_line, print_result, show_table
from trtspec.core.errors import TrtspecError


def datasets(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="Prompt file, or the name of a shipped set."),
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Also count tokens with this checkpoint's tokenizer and chat template."),
    ] = None,
    shipped: Annotated[bool, typer.Option("--list", help="List the shipped sets.")] = False,
    json: Json = False,
) -> None:
    """Summarize a prompt file or list the shipped prompt sets.

    Shows the format, and the number and lengths of the prompts by kind.

    Example: trtspec datasets kinds --tokenizer recipes/models/quickstart-target
    """
    from trtspec.engine.prompts.load import list_shipped, read_prompts, summarize

    if (file is None) is not shipped:
        raise TrtspecError("datasets requires either FILE or --list")
    if file is None:
        sets = list_shipped()
        print_result({"format_version": 1, "sets": sets}, lambda: _show_sets(sets), as_json=json)
    else:
        found = summarize(read_prompts(file), tokenizer)
        print_result({"format_version": 1, **found}, lambda: _show(found), as_json=json)


def _show_sets(sets: list[dict[str, Any]]) -> None:
    rows = []
    for each in sets:
        kinds = ", ".join(kind["kind"] or "none" for kind in each["kinds"])
        rows.append((each["name"], str(each["prompts"]), _spread(each["characters"]), kinds))
    show_table("", ("name", "prompts", "characters", "kinds"), rows, (1, 2))


def _show(summary: Mapping[str, Any]) -> None:
    parts = [*summary["kinds"], {**summary, "kind": "all"}] if len(summary["kinds"]) > 1 else summary["kinds"]
    columns, right = ["kind", "prompts", "characters", "tokens"], (1, 2, 3)
    shown = 4 if summary["tokens"] else 3
    rows = [
        [each["kind"] or "-", str(each["prompts"]), _spread(each["characters"]), _spread(each["tokens"])][:shown]
        for each in parts
    ]
    show_table(f"{summary['file']}: {summary['format_title']}", columns[:shown], rows, right[: shown - 1])
    print_line(_describe(summary))


def _describe(summary: Mapping[str, Any]) -> str:
    """Return a summary of the prompts and of the records and turns that are not used."""
    text = f"{pluralize(summary['prompts'], 'prompt')}, lengths as minimum / median / maximum"
    if chats := summary["with_messages"]:
        text += f"; {chats:,} rendered with a chat template"
    if turns := summary["further_turns"]:
        text += f"; {pluralize(turns, 'later turn')} ignored"
    if records := summary["left_out"]:
        text += f"; {pluralize(records, 'record')} without a question skipped"
    return text


def _spread(lengths: Mapping[str, int] | None) -> str:
    return f"{lengths['min']:,} / {lengths['median']:,} / {lengths['max']:,}" if lengths else ""


panel = "Measure"
command = datasets
