# SPDX-License-Identifier: Apache-2.0
"""Loading of recipe files: read under a size limit, then apply `extends`, `--set` and `matrix`, then validate.

Defines the search path of recipes and the recipe keys that contain paths. Later stages locate their diagnostics in the
recipe file through LoadedRecipe.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from trtspec.core.diagnostics import Diagnostic, Mark, RecipeError, raise_recipe_error, sort_diagnostics
from trtspec.core.paths import recipes_dir
from trtspec.core.registry import did_you_mean
from trtspec.recipe.matrix import choose_cells, expand_matrix
from trtspec.recipe.schema import Recipe
from trtspec.recipe.validate import find_mark, validate_recipe, with_hint
from trtspec.recipe.yaml_tree import (
    CONTROL,
    LINE_BREAK,
    RecipeNode,
    RecipeText,
    locate,
    merge,
    parse_document,
    plain,
    put,
    split_path,
    without,
)

MAX_BYTES = 1 << 20
MAX_EXTENDS = 8
STDIN = Path("-")

MODEL_KEYS = ("target.model", "speculation.draft.model")
FILE_KEYS = (
    "target.quantization.calibration.prompts",
    "speculation.draft.quantization.calibration.prompts",
    "gates.prompts",
    "engine.build.timing_cache",
    "speculation.options.confidence_cost_table",
    "speculation.options.confidence_calibration",
    "speculation.options.adapter",
)


def find_recipe(given: Path) -> Path:
    """Return `given` if the file exists, else the shipped recipe of that name, else `given` unchanged."""
    return given if os.path.isfile(given) else _shipped(str(given)) or given


def display_name(path: Path) -> str:
    return "<stdin>" if path == STDIN else str(path)


def anchor_paths(root: RecipeNode) -> RecipeNode:
    """Return the tree with relative paths made absolute, based on the directory of the file that contains them."""
    for dotted in MODEL_KEYS + FILE_KEYS:
        path = dotted.split(".")
        node, written = locate(root, path)
        if written and isinstance(node.value, str) and node.value and (dotted in FILE_KEYS or _is_path(node)):
            absolute = os.path.abspath(node.base / os.path.expanduser(node.value))
            root = put(root, path, replace(node, value=absolute))
    return root


def change_paths(document: dict[str, Any], change: Callable[[str], str]) -> None:
    """Replace, in place, every absolute path in a recipe's plain values with `change(path)`."""
    for dotted in MODEL_KEYS + FILE_KEYS:
        *sections, key = dotted.split(".")
        section = document
        for name in sections:
            section = section.get(name) or {}
        value = section.get(key)
        if isinstance(value, str) and os.path.isabs(value):
            section[key] = change(value)


def _shipped(name: str) -> Path | None:
    path = recipes_dir() / f"{name}.yaml"
    return path if os.path.basename(name) == name and os.path.isfile(path) else None


def _is_path(node: RecipeNode) -> bool:
    """Return True if a model is a directory, not a hub id; its first character, slashes or existence show it."""
    value: str = node.value
    deep = value.count("/") > 1 and "://" not in value
    return value.startswith(("/", ".", "~")) or deep or os.path.isdir(node.base / value)


def _read(path: Path, asked_at: Mark, chain: tuple[str, ...], diagnostics: list[Diagnostic]) -> RecipeNode:
    """Return the tree of a recipe file (`-` is standard input), merged over the files that it extends."""
    text = _text(path, asked_at)
    base = Path(os.path.abspath(path)).parent
    root = parse_document(text, RecipeText.of(display_name(path), base, text), diagnostics)
    hint = "begin with schema: trtspec.recipe/1"
    if root.value is None:
        raise_recipe_error(Mark(display_name(path)), "empty", "the file is empty", hint)
    if not isinstance(root.value, dict):
        raise_recipe_error(root.mark, "wrong-type", "a recipe is a mapping of keys to values", hint)
    extends = root.value.get("extends")
    if extends is None or extends.value is None:
        return without(root, "extends")
    parent = _parent(path, extends, (*chain, os.path.realpath(path)), diagnostics)
    return merge(without(root, "extends"), parent)


def _parent(child: Path, extends: RecipeNode, chain: tuple[str, ...], diagnostics: list[Diagnostic]) -> RecipeNode:
    refuse = partial(raise_recipe_error, extends.mark, path="extends")
    if not isinstance(extends.value, str) or not extends.value or CONTROL.search(extends.value):
        refuse("wrong-type", "expected the path of another recipe", "as extends: base.yaml")
    path = Path(os.path.normpath(child.parent / os.path.expanduser(extends.value)))
    path = path if os.path.exists(path) else _shipped(extends.value) or path
    if os.path.realpath(path) in chain:
        around = " -> ".join(os.path.basename(file) for file in (*chain, str(path)))
        refuse("extends-cycle", f"extends goes in a circle: {around}", "remove one of them")
    if len(chain) > MAX_EXTENDS:
        refuse("extends-depth", f"more than {MAX_EXTENDS} recipes extend each other", "merge some of them")
    return _read(path, extends.mark, chain, diagnostics)


def _text(path: Path, asked_at: Mark) -> str:
    asked_key, is_stdin = "extends" if asked_at.line else "", path == STDIN
    refuse = partial(raise_recipe_error, asked_at, "unreadable", path=asked_key)
    if not is_stdin and os.path.exists(path) and not os.path.isfile(path):
        refuse(f"{path} is not a file", "name the recipe's .yaml file")
    try:
        with open(0 if is_stdin else path, "rb", closefd=not is_stdin) as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        looked = f"; looked for {os.path.abspath(path)}" if asked_key else ""
        refuse(f"{path} does not exist{looked}", _nearest(path))
    except OSError as error:
        refuse(f"{display_name(path)} cannot be read: {error.strerror}")
    if len(data) > MAX_BYTES:
        raise_recipe_error(
            Mark(display_name(path)), "too-large", f"the file is larger than {MAX_BYTES >> 20} MiB", "is it a recipe?"
        )
    return _decoded(data, path)


def _nearest(path: Path) -> str | None:
    """Return a hint with the most similar name among the recipes in the same directory, else among the shipped ones."""
    beside = did_you_mean(path.stem, {sibling.stem for sibling in path.parent.glob("*.yaml")}, ".yaml")
    return beside or did_you_mean(str(path), [recipe.stem for recipe in recipes_dir().glob("*.yaml")])


def _decoded(data: bytes, path: Path) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # A byte order mark is already removed from error.object, and its offsets do not count it.
        before = LINE_BREAK.split(error.object[: error.start].decode("utf-8"))
        mark = Mark(display_name(path), len(before), len(before[-1]) + 1)
        raise_recipe_error(
            mark, "encoding", f"not UTF-8: byte 0x{error.object[error.start]:02x}", "save the file as UTF-8"
        )


@dataclass(frozen=True)
class LoadedRecipe:
    """A valid recipe, its file, and its tree with the source location of each value."""

    recipe: Recipe
    path: Path
    tree: RecipeNode = field(repr=False)

    def located(self, diagnostic: Diagnostic) -> Diagnostic:
        """Return the diagnostic with a hint and the location of its recipe path or of the closest existing ancestor."""
        return with_hint(diagnostic).at(find_mark(self.tree, diagnostic.code, diagnostic.path.split(".")))


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> LoadedRecipe:
    """Load the only recipe of a file; raise RecipeError with all diagnostics, or if its matrix makes several."""
    loaded = load_matrix(path, overrides)
    if len(loaded) != 1:
        message = f"this file makes {len(loaded)} recipes: {', '.join(each.recipe.name for each in loaded)}"
        hint = "this command takes a single recipe: remove `matrix`"
        raise_recipe_error(Mark(display_name(path)), "matrix", message, hint, path="matrix")
    return loaded[0]


def load_matrix(path: Path, overrides: Sequence[str] = (), cells: Sequence[str] = ()) -> list[LoadedRecipe]:
    """Load the recipes of a file: one per combination of its `matrix`, or one without a matrix.

    `path` may be `-` (standard input) or the name of a shipped recipe. `overrides` have the form KEY=VALUE. `cells` are
    fnmatch patterns that select combinations by name. Raises RecipeError with all diagnostics, and TrtspecError for a
    pattern that matches none.
    """
    path = find_recipe(path)
    diagnostics: list[Diagnostic] = []
    try:
        root = _read(path, Mark(display_name(path)), (), diagnostics)
        for override in overrides:
            root = _overridden(root, override, diagnostics)
        trees = [anchor_paths(tree) for tree in expand_matrix(root, diagnostics)]
        if not diagnostics:  # otherwise the names may be wrong
            trees = choose_cells(trees, cells, display_name(path))
    except RecipeError as error:
        raise RecipeError(sort_diagnostics(list(map(with_hint, [*diagnostics, *error.diagnostics])))) from None
    recipes = [validate_recipe(tree, diagnostics) for tree in trees]
    if diagnostics:
        raise RecipeError(sort_diagnostics(list(map(with_hint, diagnostics))))
    return [LoadedRecipe(recipe, path, tree) for recipe, tree in zip(recipes, trees, strict=True) if recipe]


def merged_text(path: Path, overrides: Sequence[str] = ()) -> str:
    """Return a recipe file as one text: unchanged, or as JSON if it extends another file or has overrides.

    JSON is YAML in which every scalar keeps its type. A `matrix` is kept. Raises RecipeError.
    """
    path = find_recipe(path)
    text, diagnostics = _text(path, Mark(display_name(path))), list[Diagnostic]()
    source = RecipeText.of(display_name(path), Path(os.path.abspath(path)).parent, text)
    has_parent = locate(parse_document(text, source, diagnostics), ["extends"])[1]
    if not has_parent and not overrides:
        return text
    root = _read(path, Mark(display_name(path)), (), diagnostics)
    for override in overrides:
        root = _overridden(root, override, diagnostics)
    if diagnostics:
        raise RecipeError(sort_diagnostics(diagnostics))
    return json.dumps(plain(root), indent=2, ensure_ascii=False) + "\n"


def _overridden(root: RecipeNode, override: str, diagnostics: list[Diagnostic]) -> RecipeNode:
    """Return the tree with the value of `--set KEY=VALUE`; relative paths in it start at the current directory."""
    source = RecipeText(f"--set {override}", Path.cwd())
    key, equals, text = override.partition("=")
    path = split_path(key.strip())
    if equals and path and path[0] not in ("extends", "matrix"):
        return put(root, path, parse_document(text, source, diagnostics, path))
    message = "expected KEY=VALUE with the dotted path of a recipe's value"
    hint = "as in --set speculation.draft_len=4"
    diagnostics.append(Diagnostic(key.strip(), "bad-override", message, hint).at(Mark(source.name)))
    return root
