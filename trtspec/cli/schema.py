# SPDX-License-Identifier: Apache-2.0
"""`trtspec schema`: print the JSON Schema of recipes."""

from __future__ import annotations

from trtspec.cli.options import Json
from trtspec.cli.render import print_json


def schema(json: Json = False) -> None:
    """Print the JSON Schema of recipes for editors.

    Example: trtspec schema > trtspec-recipe.schema.json
    """
    from trtspec.planning.completion import editor_schema

    schema = editor_schema()
    print_json({"format_version": 1, "schema": schema} if json else schema)


panel = "Build"
command = schema
