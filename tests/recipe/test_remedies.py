# SPDX-License-Identifier: Apache-2.0
"""Diagnostics that get a default hint by their code or key."""

from __future__ import annotations

from trtspec.core.diagnostics import Diagnostic
from trtspec.recipe.validate import BY_CODE, with_hint


def test_key_hint_is_added_to_errors_but_not_to_warnings() -> None:
    error = with_hint(Diagnostic("speculation.method", "anything", "is wrong"))
    assert error.hint
    assert error.hint.startswith("speculation.method: ")
    warning = Diagnostic("speculation.method", "greedy-only", "samples are the target's", severity="warning")
    assert with_hint(warning) == warning


def test_code_hint_is_added_to_errors_and_warnings() -> None:
    for severity in ("error", "warning"):
        assert with_hint(Diagnostic("engine", "unused", "is unused", severity=severity)).hint == BY_CODE["unused"]
