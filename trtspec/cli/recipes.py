# SPDX-License-Identifier: Apache-2.0
"""`trtspec recipes`: list the recipes shipped with trtspec."""

from __future__ import annotations

from pathlib import Path

from trtspec.cli.options import Json
from trtspec.cli.render import print_result, show_table
from trtspec.core.paths import recipes_dir


def recipes(json: Json = False) -> None:
    """List the recipes shipped with trtspec.

    Example: trtspec recipes
    """
    from trtspec.recipe.load import load_matrix

    found = [
        {
            "name": loaded.recipe.name,
            "path": str(path),
            "target": loaded.recipe.target.model,
            "method": loaded.recipe.speculation.method,
        }
        for path in sorted(recipes_dir().glob("*.yaml"))
        for loaded in load_matrix(path)
    ]
    rows = [(each["name"], each["method"], Path(each["path"]).name) for each in found]
    print_result(
        {"format_version": 1, "recipes": found},
        lambda: show_table(str(recipes_dir()), ("name", "method", "file"), rows),
        as_json=json,
    )


panel = "Build"
command = recipes
