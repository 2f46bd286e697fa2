# SPDX-License-Identifier: Apache-2.0
"""`trtspec compare`."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trtspec.cli import completing
from trtspec.cli.options import Json

if TYPE_CHECKING:
    from trtspec.planning.compare.difference import Comparison, Place

THEY_DIFFER = 2
WIDEST = 60


def _thing(name: str) -> Any:
    told = "A recipe or its shipped name, an artifact, or a saved document of plan, verify or bench."
    return typer.Argument(metavar=name, help=told, show_default=False, autocompletion=completing.recipes)


def compare(
    a: Annotated[Path, _thing("A")],
    b: Annotated[Path, _thing("B")],
    all_: Annotated[bool, typer.Option("--all", help="Show what is the same, too.")] = False,
    exit_code: Annotated[bool, typer.Option("--exit-code", help="Exit with 2 where they differ.")] = False,
    json: Json = False,
) -> None:
    """Say what differs between two recipes, plans, artifacts or reports, and what that changes.

    Example: trtspec compare recipes/quickstart.yaml recipes/quickstart-ngram.yaml
    """
    from trtspec.cli.render import print_json
    from trtspec.planning.compare.difference import compare as compare_sides
    from trtspec.planning.compare.inputs import read_side

    places: dict[Path, dict[str, str]] = {}
    comparison = compare_sides(*(read_side(path, partial(_plan_of, places)) for path in (a, b)))
    if places.keys() == {a, b}:
        comparison = comparison.naming(places[a], places[b])
    if json:
        print_json(comparison.as_dict(everything=all_))
    else:
        show(comparison, everything=all_)
    raise typer.Exit(THEY_DIFFER if exit_code and comparison.differences else 0)


def _plan_of(places: dict[Path, dict[str, str]], recipe: Path) -> dict[str, Any]:
    """Return a recipe's plan, and note where its models lie: a plan has their names alone."""
    from trtspec.cli.plan import describe
    from trtspec.core.paths import is_below, recipes_dir
    from trtspec.planning.init.recipe_text import relative_model
    from trtspec.planning.pipeline import open_store, plan_build
    from trtspec.recipe.load import load_recipe

    build = plan_build(load_recipe(recipe))
    models = {"target.model": build.recipe.target, "speculation.draft.model": build.recipe.models.get("draft")}
    document = describe(build, open_store())
    places[recipe] = {
        path: relative_model(each.model, Path.cwd())
        for path, each in models.items()
        if each and not is_below(Path(each.model), recipes_dir())  # whose names tell them apart
    }
    return document


def show(comparison: Comparison, *, everything: bool) -> None:
    """Show what differs, then what it changes, then what was the same and what was not compared."""
    from itertools import groupby
    from operator import attrgetter

    from trtspec.cli.render import say, show_table

    for letter, side in (("a", comparison.a), ("b", comparison.b)):
        say(f"{letter}: {side.kind} {side.path}")
        for remark in side.remarks:
            say(f"   {_plain(remark)}", "yellow")
    places = comparison.places if everything else comparison.differences
    document = comparison.as_dict()
    why = {step["name"]: step["why"] for step in document["effects"]["steps"] or ()}
    for section, those in groupby(places, key=attrgetter("section")):
        rows = [(_line(each.path), *(_cell(each, v) for v in (each.a, each.b)), _change(each, why)) for each in those]
        show_table("", (section, "a", "b", ""), rows)
    _show_effects(document["effects"])
    for section, reason in comparison.not_compared.items():
        say(f"not compared: {section}: {reason}")
    same = ", ".join(f"{section} {count}" for section, count in comparison.same.items())
    say(f"the same: {same or 'nothing'}" if comparison.differences else f"no difference; compared: {same}")


def _cell(place: Place, value: Any) -> str:
    """Return a value as people read it."""
    from trtspec.store.disk_space import amount

    if value is None:
        return "-"
    if place.section == "memory":
        return amount(value)
    if place.section == "files":
        return f"{amount(value['size'])} {value['sha256'][:12]}"
    if isinstance(value, dict):  # a whole draft, which only one of them has
        value = value.get("model", value)
    text = value if isinstance(value, str) else json.dumps(value)
    return _line(text[:12] if place.section == "steps" else text)


def _line(text: str) -> str:
    text = _plain(text)
    return text if len(text) <= WIDEST else f"{text[: WIDEST - 1]}…"


def _plain(text: str) -> str:
    """Return a stranger's text so that it cannot write elsewhere on the terminal."""
    return text if text.isprintable() else repr(text)


def _change(place: Place, why: dict[str, str]) -> str:
    """Return in a word or two how a value changes, of a step why."""
    if place.what != "differs":
        return "" if place.what == "same" else place.what
    if place.section == "steps":
        return _plain(why.get(place.path, ""))
    is_measured = place.section not in ("recipe", "files") and place.percent is not None
    return f"{place.percent:+.1f} %" if is_measured else ""


def _show_effects(effects: dict[str, Any]) -> None:
    from trtspec.cli.render import say
    from trtspec.store.disk_space import amount

    if build := effects["build"]:
        sizes = {verb: build[f"left_{verb}_bytes"] for verb in ("read", "write")}
        known = [f"{amount(size)} to {verb}" for verb, size in sizes.items() if size]
        say("; ".join(["to build b where a is built: " + (_plain(", ".join(build["steps"])) or "nothing"), *known]))
    if speedup := effects["speedup"]:
        intervals = " and ".join("{:.2f} to {:.2f}".format(*speedup[letter]) for letter in "ab")
        verdict = "overlap: the difference may be chance" if speedup["overlap"] else "do not overlap"
        say(f"speed-up: {intervals}; the intervals {verdict}")
    if files := effects["files"]:
        apart = f"{files['different']} different, {files['only_a']} only in a, {files['only_b']} only in b"
        both = f"{amount(files['a_bytes'])} and {amount(files['b_bytes'])}"
        say(f"files: {files['same']} the same, {apart}; {both}")


command = compare
