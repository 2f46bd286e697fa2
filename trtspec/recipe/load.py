# SPDX-License-Identifier: Apache-2.0
"""Load a recipe file: read, extend, override, expand and validate, in this order.

Also provides the handle through which later stages report diagnostics.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trtspec.core.diagnostics import Diagnostic, Mark, RecipeError, raise_recipe_error, sort_diagnostics
from trtspec.recipe.files import anchor_paths, display_name, find_recipe, read_recipe
from trtspec.recipe.hints import with_hint
from trtspec.recipe.matrix import choose_cells, expand_matrix
from trtspec.recipe.schema import Recipe
from trtspec.recipe.tree import RecipeNode, put, split_path
from trtspec.recipe.validate import find_mark, validate_recipe
from trtspec.recipe.yaml_parser import RecipeText, parse_document


@dataclass(frozen=True)
class LoadedRecipe:
    """A valid recipe with the source location of each value."""

    recipe: Recipe
    path: Path
    tree: RecipeNode = field(repr=False)

    def located(self, diagnostic: Diagnostic) -> Diagnostic:
        """Return the diagnostic with the location of its recipe path, or of the nearest ancestor in the file."""
        return with_hint(diagnostic).at(find_mark(self.tree, diagnostic.code, diagnostic.path.split(".")))


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> LoadedRecipe:
    """Return the only recipe of a file; RecipeError with all diagnostics, or if the file has several recipes."""
    loaded = load_matrix(path, overrides)
    if len(loaded) != 1:
        message = f"this file makes {len(loaded)} recipes: {', '.join(each.recipe.name for each in loaded)}"
        raise_recipe_error(
            Mark(display_name(path)),
            "matrix",
            message,
            "this command takes a single recipe: remove `matrix`",
            path="matrix",
        )
    return loaded[0]


def load_matrix(path: Path, overrides: Sequence[str] = (), cells: Sequence[str] = ()) -> list[LoadedRecipe]:
    """Return one recipe per combination of `matrix` (one without a matrix); RecipeError with all diagnostics.

    `path` may be `-` (standard input) or the name of a shipped recipe. `cells` are fnmatch patterns that select
    combinations by name; TrtspecError if a pattern matches none.
    """
    path = find_recipe(path)
    diagnostics: list[Diagnostic] = []
    try:
        trees = _trees(path, overrides, diagnostics)
        if not diagnostics:  # otherwise the names may be wrong
            trees = choose_cells(trees, cells, display_name(path))
    except RecipeError as error:
        raise RecipeError(sort_diagnostics(list(map(with_hint, [*diagnostics, *error.diagnostics])))) from None
    recipes = [validate_recipe(tree, diagnostics) for tree in trees]
    if diagnostics:
        raise RecipeError(sort_diagnostics(list(map(with_hint, diagnostics))))
    return [LoadedRecipe(recipe, path, tree) for recipe, tree in zip(recipes, trees, strict=True) if recipe]


def _trees(path: Path, overrides: Sequence[str], diagnostics: list[Diagnostic]) -> list[RecipeNode]:
    root = read_recipe(path, diagnostics)
    for override in overrides:
        root = _overridden(root, override, diagnostics)
    return [anchor_paths(tree) for tree in expand_matrix(root, diagnostics)]


def _overridden(root: RecipeNode, override: str, diagnostics: list[Diagnostic]) -> RecipeNode:
    """Return the tree with `a.b=value` set; relative paths in the value start at the current directory."""
    source = RecipeText(f"--set {override}", Path.cwd())
    key, equals, text = override.partition("=")
    path = split_path(key.strip())
    if equals and path and path[0] not in ("extends", "matrix"):
        return put(root, path, parse_document(text, source, diagnostics, path))
    message = "expected KEY=VALUE with the dotted path of a recipe's value"
    hint = "as in --set speculation.draft_len=4"
    diagnostics.append(Diagnostic(key.strip(), "bad-override", message, hint).at(Mark(source.name)))
    return root
