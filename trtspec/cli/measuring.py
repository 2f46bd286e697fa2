# SPDX-License-Identifier: Apache-2.0
"""Option `--on` of measuring commands: the command runs once for each recipe or artifact, on a node."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

import trtspec
from trtspec.cli.build import DEFAULT_POOL, show_failed_run
from trtspec.cli.progress import fleet_table
from trtspec.cli.render import FORMAT_VERSION, print_result, show_table
from trtspec.core.errors import TrtspecError

if TYPE_CHECKING:
    from trtspec.planning.measurements import Measurement

NOT_PASSED = ("recipe", "what", "set_", "on", "json", "help")


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


def recipe_measurements(context: typer.Context, paths: Sequence[Path], overrides: Sequence[str]) -> list[Measurement]:
    """Return a run of the current command, which takes a recipe, for each recipe of the files."""
    from trtspec.planning.measurements import recipe_measurement

    verb, arguments = context.command.name or "", options_for_nodes(context)
    recipes = [one for path in paths for one in trtspec.load_recipes(path, overrides=overrides)]
    return [recipe_measurement(verb, each, arguments) for each in recipes]


def artifact_measurements(context: typer.Context, what: Sequence[str]) -> list[Measurement]:
    """Return a run of the current command, which takes an artifact, for each artifact and each recipe of the files."""
    from trtspec.planning.measurements import artifact_measurement, built_measurement

    verb, arguments = context.command.name or "", options_for_nodes(context)
    found: list[Measurement] = []
    for each in what:
        if "://" in each:
            raise TrtspecError(
                "--on measures recipes and artifacts, not servers", where=each, hint=f"trtspec {verb} {each}"
            )
        if os.path.isdir(each):
            found.append(artifact_measurement(verb, Path(each), arguments))
        else:
            found += [built_measurement(verb, one, arguments) for one in trtspec.load_recipes(Path(each))]
    return found


def measure_on_pool(
    measurements: Sequence[Measurement], on: str | None, summary: Callable[[dict[str, Any]], str], *, json: bool
) -> None:
    """Measure on a pool and show the results; exit with the highest exit code, which is 1 for a failed measurement.

    `summary` returns the text of the table's last column for a document of the command.
    """
    from trtspec.planning.measurements import measure_all
    from trtspec.planning.pipeline import open_store

    with fleet_table() as shown:
        found = measure_all(measurements, on or DEFAULT_POOL, open_store(), shown)
    documents = [
        {
            "name": each.run.cell.name,
            "status": each.status,
            "node": each.node,
            "seconds": round(each.seconds, 4),
            "exit_code": each.exit_code,
            "error": each.run.failure.message if each.run.failure else None,
            "document": each.document or None,
        }
        for each in found
    ]
    rows = [
        (
            each.run.cell.name,
            each.status,
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
    for each in found:
        if not each.document:
            show_failed_run(each.run, each.node)
    if code := max(each.exit_code for each in found):
        raise typer.Exit(code)
