# SPDX-License-Identifier: Apache-2.0
"""`trtspec compare`: compare two recipes, plans, artifacts or reports."""

from __future__ import annotations

import json
from functools import partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trtspec.cli import completing
from trtspec.cli.options import Json
from trtspec.cli.render import print_line, print_result, show_table
from trtspec.core.paths import is_below, recipes_dir

if TYPE_CHECKING:
    from trtspec.planning.compare import InputComparison, ValueDifference

EXIT_DIFFERENT = 2
WIDEST = 60


def _argument(name: str) -> Any:
    text = "Recipe file or name, artifact, or saved --json output of plan, verify or bench."
    return typer.Argument(metavar=name, help=text, show_default=False, autocompletion=completing.recipes)


def compare(
    a: Annotated[Path, _argument("A")],
    b: Annotated[Path, _argument("B")],
    all_: Annotated[bool, typer.Option("--all", help="Also show equal values.")] = False,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit with 2 if they differ.")] = False,
    json: Json = False,
) -> None:
    """Compare two recipes, plans, artifacts or reports.

    Shows the differences and their effects on the build, the speed-up and the files.

    Example: trtspec compare recipes/quickstart.yaml recipes/quickstart-ngram.yaml
    """
    from trtspec.planning.compare import compare as compare_sides
    from trtspec.planning.compare import read_side

    places: dict[Path, dict[str, str]] = {}
    comparison = compare_sides(*(read_side(path, partial(_plan_document, places)) for path in (a, b)))
    if places.keys() == {a, b}:
        comparison = comparison.naming(places[a], places[b])
    print_result(comparison.as_dict(everything=all_), lambda: show(comparison, everything=all_), as_json=json)
    raise typer.Exit(EXIT_DIFFERENT if exit_code and comparison.differences else 0)


def _plan_document(places: dict[Path, dict[str, str]], recipe: Path) -> dict[str, Any]:
    """Return a recipe's plan, and store the paths of its models in `places`; a plan has only their names."""
    from trtspec.cli.plan import describe
    from trtspec.planning.init.recipe_text import relative_model
    from trtspec.planning.pipeline import open_store, plan_build
    from trtspec.recipe.load import load_recipe

    build = plan_build(load_recipe(recipe))
    models = {"target.model": build.recipe.target, "speculation.draft.model": build.recipe.models.get("draft")}
    document = describe(build, open_store())
    places[recipe] = {
        path: relative_model(each.model, Path.cwd())
        for path, each in models.items()
        if each and not is_below(Path(each.model), recipes_dir())  # the names of shipped models are unique
    }
    return document


def show(comparison: InputComparison, *, everything: bool) -> None:
    """Show the differences, their effects, and the sections that are equal or were not compared."""
    for letter, side in (("a", comparison.a), ("b", comparison.b)):
        print_line(f"{letter}: {side.kind} {side.path}")
        for remark in side.remarks:
            print_line(f"   {_plain(remark)}", "yellow")
    places = comparison.places if everything else comparison.differences
    document = comparison.as_dict()
    reasons = {step["name"]: step["why"] for step in document["effects"]["steps"] or ()}
    for section, those in groupby(places, key=attrgetter("section")):
        rows = [
            (_line(each.path), *(_cell(each, v) for v in (each.a, each.b)), _change(each, reasons)) for each in those
        ]
        show_table("", (section, "a", "b", ""), rows)
    _show_effects(document["effects"])
    for section, reason in comparison.not_compared.items():
        print_line(f"not compared: {section}: {reason}")
    same = ", ".join(f"{section} {count}" for section, count in comparison.same.items())
    print_line(f"the same: {same or 'nothing'}" if comparison.differences else f"no difference; compared: {same}")


def _cell(place: ValueDifference, value: Any) -> str:
    from trtspec.store.plan import format_bytes

    if value is None:
        return "-"
    if place.section == "memory":
        return format_bytes(value)
    if place.section == "files":
        return f"{format_bytes(value['size'])} {value['digest'][:12]}"
    if isinstance(value, dict):  # a whole draft section that only one side has
        value = value.get("model", value)
    text = value if isinstance(value, str) else json.dumps(value)
    return _line(text[:12] if place.section == "steps" else text)


def _line(text: str) -> str:
    text = _plain(text)
    return text if len(text) <= WIDEST else f"{text[: WIDEST - 1]}…"


def _plain(text: str) -> str:
    """Return untrusted text with control characters escaped."""
    return text if text.isprintable() else repr(text)


def _change(place: ValueDifference, reasons: dict[str, str]) -> str:
    if place.what != "differs":
        return "" if place.what == "same" else place.what
    if place.section == "steps":
        return _plain(reasons.get(place.path, ""))
    is_measured = place.section not in ("recipe", "files") and place.percent is not None
    return f"{place.percent:+.1f} %" if is_measured else ""


def _show_effects(effects: dict[str, Any]) -> None:
    from trtspec.store.plan import format_bytes

    if build := effects["build"]:
        sizes = {verb: build[f"left_{verb}_bytes"] for verb in ("read", "write")}
        known = [f"{format_bytes(size)} to {verb}" for verb, size in sizes.items() if size]
        print_line("; ".join(["to build b after a: " + (_plain(", ".join(build["steps"])) or "nothing"), *known]))
    if speedup := effects["speedup"]:
        intervals = " and ".join("{:.2f} to {:.2f}".format(*speedup[letter]) for letter in "ab")
        verdict = "overlap: the difference may be noise" if speedup["overlap"] else "do not overlap"
        print_line(f"speed-up: {intervals}; the intervals {verdict}")
    if files := effects["files"]:
        apart = f"{files['different']} different, {files['only_a']} only in a, {files['only_b']} only in b"
        both = f"{format_bytes(files['a_bytes'])} and {format_bytes(files['b_bytes'])}"
        print_line(f"files: {files['same']} the same, {apart}; {both}")


panel = "Build"
command = compare
