# SPDX-License-Identifier: Apache-2.0
"""`trtspec check`."""

from __future__ import annotations

import typer

from trtspec.cli.options import Json, Recipe, Set


def check(recipe: Recipe, set_: Set = None, json: Json = False) -> None:
    """Say everything that can be known of a recipe without loading a tensor.

    Example: trtspec check recipes/quickstart.yaml
    """
    from trtspec.check import check_recipe
    from trtspec.cli.render import FORMAT_VERSION, print_json, say, show_diagnostics
    from trtspec.diagnostics import RecipeError
    from trtspec.recipe.load import load_matrix

    try:
        recipes = load_matrix(recipe, set_ or ())
        diagnostics = [diagnostic for loaded in recipes for diagnostic in check_recipe(loaded).diagnostics]
        diagnostics = list(dict.fromkeys(diagnostics))
    except RecipeError as error:
        recipes, diagnostics = [], list(error.diagnostics)
    errors = sum(diagnostic.severity == "error" for diagnostic in diagnostics)
    if json:
        listed = [diagnostic.as_dict() for diagnostic in diagnostics]
        print_json({"format_version": FORMAT_VERSION, "ok": not errors, "problems": listed})
    else:
        show_diagnostics(diagnostics, are_result=True)
        names = ", ".join(loaded.recipe.name for loaded in recipes)
        say(f"{errors} error{'s' * (errors != 1)} in {recipe}" if errors else f"{names}: fits together")
    raise typer.Exit(1 if errors else 0)


command = check
