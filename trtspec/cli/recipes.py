# SPDX-License-Identifier: Apache-2.0
"""`trtspec recipes`."""

from __future__ import annotations

from pathlib import Path

from trtspec.cli.options import Json
from trtspec.cli.render import print_json, show_table
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
    if json:
        print_json({"format_version": 1, "recipes": found})
    else:
        rows = [(each["name"], each["method"], Path(each["path"]).name) for each in found]
        show_table(str(recipes_dir()), ("name", "method", "file"), rows)


panel = "Build"
command = recipes
