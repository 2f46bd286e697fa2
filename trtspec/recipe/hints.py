# SPDX-License-Identifier: Apache-2.0
"""What to do about a diagnostic whose author had no better word: by its code, else what an error's key is for."""

from __future__ import annotations

from dataclasses import replace

from trtspec.core.diagnostics import Diagnostic
from trtspec.recipe.validate import recipe_keys

BY_CODE = {
    "control-character": "remove it; of control characters a text may hold tabs and line ends",
    "placement": "set serving.placement, or divide over fewer GPUs with parallel",
    "matrix": "write it as matrix: {speculation.draft_len: [3, 5]}",
    "syntax": "look at the quotes, brackets, colons and the indentation up to this place",
    "unknown-key": "remove it",
    "unreadable": "name a recipe's .yaml file that may be read, or one that `trtspec recipes` lists",
    "unused": "remove it",
}
# Their messages contain the fix, or their hint depends on the cause.
SAY_IT_THEMSELVES = ("bad-value", "checkpoint", "out-of-range", "wrong-type")


def with_remedy(diagnostic: Diagnostic) -> Diagnostic:
    """Return a diagnostic that says what to do, in its message or as its hint."""
    if diagnostic.hint or diagnostic.code in SAY_IT_THEMSELVES:
        return diagnostic
    return replace(diagnostic, hint=_remedy(diagnostic))


def _remedy(diagnostic: Diagnostic) -> str | None:
    if diagnostic.code in BY_CODE:
        return BY_CODE[diagnostic.code]
    if diagnostic.severity == "warning":  # one without a hint may stay as it is
        return None
    path = diagnostic.path
    while path and path not in recipe_keys():
        path = path.rpartition(".")[0]
    return f"{path}: {recipe_keys()[path]}" if path else None
