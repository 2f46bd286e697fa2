# SPDX-License-Identifier: Apache-2.0
"""Option `--on` of measuring commands: the command runs for each recipe on a node, and the results are tabulated."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import typer

import trtspec
from trtspec.cli.build import DEFAULT_POOL, show_failed_run
from trtspec.cli.progress import fleet_table
from trtspec.cli.render import FORMAT_VERSION, print_result, show_table

NOT_PASSED = ("recipe", "set_", "on", "json", "help")


def options_for_nodes(context: typer.Context) -> list[str]:
    """Return the options of the running command as arguments; paths of existing files become absolute."""
    arguments: list[str] = []
    for parameter in context.command.params:
        value = context.params.get(parameter.name or "")
        unset: tuple[Any, ...] = (None, False, (), [], parameter.default)
        if parameter.param_type_name != "option" or parameter.name in NOT_PASSED or value in unset:
            continue
        option = parameter.opts[-1]
        if value is True:
            arguments.append(option)
            continue
        for each in value if isinstance(value, list | tuple) else [value]:
            text = str(each)
            arguments += [option, os.path.abspath(text) if os.path.isfile(text) else text]
    return arguments


def measure_on_pool(
    context: typer.Context,
    paths: Sequence[Path],
    overrides: Sequence[str],
    on: str | None,
    summary: Callable[[dict[str, Any]], str],
    *,
    json: bool,
) -> None:
    """Run the current command for all recipes on a pool and show the results; exit with 1 if any failed.

    `summary` returns the text of the table's last column for a document of the command.
    """
    from trtspec.planning.measurements import measure_recipes
    from trtspec.planning.pipeline import open_store

    verb = context.command.name or ""
    recipes = [one for path in paths for one in trtspec.load_recipes(path, overrides=overrides)]
    with fleet_table() as shown:
        found = measure_recipes(verb, recipes, options_for_nodes(context), on or DEFAULT_POOL, open_store(), shown)
    documents = [
        {
            "name": each.run.cell.name,
            "status": "measured" if each.document else each.run.status,
            "node": each.node,
            "seconds": round(each.seconds, 4),
            "error": each.run.failure.message if each.run.failure else None,
            "document": each.document or None,
        }
        for each in found
    ]
    rows = [
        (
            each.run.cell.name,
            "measured" if each.document else each.run.status,
            each.node or "-",
            f"{each.seconds:.1f} s",
            summary(each.document) if each.document else "",
        )
        for each in found
    ]
    print_result(
        {"format_version": FORMAT_VERSION, "recipes": documents},
        lambda: show_table("", ("recipe", "status", "node", "time", "result"), rows, right=(3,)),
        as_json=json,
    )
    failed = [each for each in found if not each.document]
    for each in failed:
        show_failed_run(each.run, each.node)
    if failed:
        raise typer.Exit(1)
