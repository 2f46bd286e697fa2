# SPDX-License-Identifier: Apache-2.0
"""`trtspec migrate`: migrate a recipe to another TensorRT-LLM version or backend."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtspec.cli.options import Json, Recipe
from trtspec.cli.render import FORMAT_VERSION, print_line, print_result, show_table, write_output
from trtspec.core.errors import TrtspecError
from trtspec.core.paths import PACKAGE, is_below, recipes_dir

if TYPE_CHECKING:
    from trtspec.backends.base import Migration
    from trtspec.recipe.load import LoadedRecipe


_BACKEND = "Backend to migrate to (without --to: its newest version)."
_OUTPUT = "New recipe file (default: next to the old one; for a shipped recipe, the current directory)."


def migrate(
    recipe: Recipe,
    to: Annotated[str, typer.Option("--to", metavar="VERSION", help="TensorRT-LLM version, e.g. 1.3.")] = "",
    backend: Annotated[str, typer.Option("--backend", metavar="NAME", help=_BACKEND)] = "",
    output: Annotated[Path | None, typer.Option("--output", "-o", help=_OUTPUT)] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    json: Json = False,
) -> None:
    """Migrate a recipe to another TensorRT-LLM version or backend.

    Lists the settings that carry over and those that do not. Exits with 1 if values have to be filled in by hand.

    Example: trtspec migrate recipes/quickstart.yaml --to 1.3 -o /tmp/quickstart-1.3.yaml
    """
    from trtspec.planning.migration import migrate as migrated
    from trtspec.recipe.load import load_recipe

    if not (to or backend):
        raise TrtspecError("migrate requires --to or --backend", hint="add --to VERSION, --backend NAME or both")
    loaded = load_recipe(recipe)
    found = migrated(loaded.recipe, to, backend)
    out = output or default_output(loaded, "-".join(filter(None, (backend, to))))
    if is_below(out, PACKAGE):
        hint = "choose another file with --output"
        raise TrtspecError("refusing to write into the installation of trtspec", where=str(out), hint=hint)
    if out.exists() and not force:
        raise TrtspecError(
            "the file already exists", where=str(out), hint="choose another with --output, or add --force"
        )
    text = render(found, recipe, out.parent, backend or "TensorRT-LLM")
    write_output(out, text, "the recipe", hint="choose another place with --output")
    changes = [asdict(change) for change in found.changes]
    files = {"recipe": str(recipe), "output": str(out)}
    result = {"version": found.version, "complete": found.is_complete, "changes": changes}

    def show() -> None:
        show_table("", ("", "key", "why"), [(each["kind"], each["path"], each["why"]) for each in changes])
        rest = "" if found.is_complete else "; fill in the open values, then run trtspec check"
        print_line(f"{out}: written{rest}")

    print_result({"format_version": FORMAT_VERSION, **files, **result}, show, as_json=json)
    raise typer.Exit(0 if found.is_complete else 1)


def default_output(loaded: LoadedRecipe, to: str) -> Path:
    """Return the default file: next to the old recipe, or in the current directory for a shipped recipe or stdin."""
    if loaded.path.is_file() and not is_below(loaded.path, recipes_dir()):
        return loaded.path.with_name(f"{loaded.path.stem}-{to}.yaml")
    return Path(f"{loaded.recipe.name}-{to}.yaml")


def render(found: Migration, recipe: Path, directory: Path, engine: str) -> str:
    """Return the text of the new recipe, with a header of changes and paths relative to its directory."""
    import yaml

    from trtspec.planning.init.recipe_text import relative_model
    from trtspec.recipe.load import change_paths

    head = [f"# {recipe.name} for {engine} {found.version}, written by trtspec migrate."]
    head += [f"# {change.kind}: {change.path}: {change.why}" for change in found.changes]
    change_paths(found.document, lambda path: relative_model(path, directory))
    return "\n".join(head) + "\n" + yaml.safe_dump(found.document, sort_keys=False, allow_unicode=True, width=120)


panel = "Build"
command = migrate
