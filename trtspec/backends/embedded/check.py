# SPDX-License-Identifier: Apache-2.0
"""What the embedded engine has against a recipe: keys that are for engines of other kinds."""

from __future__ import annotations

from collections.abc import Iterator

from trtspec.backends.base import Case, Objection


def objections(case: Case) -> Iterator[Objection]:
    """Yield a warning for each key that has no effect here."""
    engine, serving = case.recipe.engine, case.recipe.serving
    for option in engine.extra:
        message = "an option of trtllm-build; the embedded engine has no use for it"
        yield Objection(f"engine.extra.{option}", "unused", message, severity="warning")
    for key in sorted(engine.build.model_fields_set):
        message = f"{key} is for trtllm-build; the embedded engine has no use for it"
        yield Objection(f"engine.build.{key}", "unused", message, severity="warning")
    if serving.fast_logits:
        message = "the embedded engine hands no logits from GPU to GPU"
        yield Objection("serving.fast_logits", "unused", message, severity="warning")
