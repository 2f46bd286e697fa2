# SPDX-License-Identifier: Apache-2.0
"""Default hints for diagnostics without one: by code, or the description of the key for errors."""

from __future__ import annotations

from dataclasses import replace

from trtspec.core.diagnostics import Diagnostic
from trtspec.recipe.validate import recipe_keys

BY_CODE = {
    "control-character": "remove it; tabs and line ends are the only control characters allowed in a text",
    "placement": "set serving.placement, or use fewer GPUs with parallel",
    "matrix": "write it as matrix: {speculation.draft_len: [3, 5]}",
    "syntax": "check the quotes, brackets, colons and the indentation up to this place",
    "unknown-key": "remove it",
    "unreadable": "name a readable .yaml recipe file, or a recipe that `trtspec recipes` lists",
    "unused": "remove it",
}
# These messages contain the fix, or their hint depends on the cause.
SELF_EXPLANATORY = ("bad-value", "checkpoint", "out-of-range", "wrong-type")


def with_hint(diagnostic: Diagnostic) -> Diagnostic:
    """Return a diagnostic with a fix in its message or a hint, if one is known."""
    if diagnostic.hint or diagnostic.code in SELF_EXPLANATORY:
        return diagnostic
    return replace(diagnostic, hint=_remedy(diagnostic))


def _remedy(diagnostic: Diagnostic) -> str | None:
    if diagnostic.code in BY_CODE:
        return BY_CODE[diagnostic.code]
    if diagnostic.severity == "warning":  # a hint is optional for warnings
        return None
    path = diagnostic.path
    while path and path not in recipe_keys():
        path = path.rpartition(".")[0]
    return f"{path}: {recipe_keys()[path]}" if path else None
