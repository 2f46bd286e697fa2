# SPDX-License-Identifier: Apache-2.0
"""What to do about a diagnostic whose author had no better word: by its code, else what its key is for."""

from __future__ import annotations

from dataclasses import replace

from trtspec.diagnostics import Diagnostic
from trtspec.recipe.validate import recipe_keys

BY_CODE = {
    "checkpoint": "`trtspec inspect` shows what is read of a checkpoint; one that is damaged is downloaded again",
    "placement": "set serving.placement, or divide over fewer GPUs with parallel",
    "matrix": "write it as matrix: {speculation.draft_len: [3, 5]}",
    "syntax": "look at the quotes, brackets, colons and the indentation up to this place",
    "unknown-key": "remove it",
    "unreadable": "name a recipe's .yaml file that may be read, or one that `trtspec recipes` lists",
    "unused": "remove it",
}
OPTIONS = "speculation.options"


def with_remedy(diagnostic: Diagnostic) -> Diagnostic:
    """Return a diagnostic that has a hint."""
    return diagnostic if diagnostic.hint else replace(diagnostic, hint=_remedy(diagnostic))


def _remedy(diagnostic: Diagnostic) -> str | None:
    if diagnostic.code in BY_CODE:
        return BY_CODE[diagnostic.code]
    path = diagnostic.path
    while path and path not in recipe_keys():
        path = path.rpartition(".")[0]
    if path == OPTIONS:
        return "trtspec schema lists the options of each method, with their types and ranges"
    return f"{path}: {recipe_keys()[path]}" if path else None
