# SPDX-License-Identifier: Apache-2.0
"""What the torch engine says of a recipe: keys that are for engines of other kinds."""

from __future__ import annotations

from collections.abc import Iterator

from trtspec.backends.context import PlanContext
from trtspec.diagnostics import Diagnostic


def check(context: PlanContext) -> Iterator[Diagnostic]:
    """Yield a warning for each key that has no effect here."""
    engine, serving = context.recipe.engine, context.recipe.serving
    for option in engine.extra:
        message = "an option of trtllm-build; the torch engine has no use for it"
        yield Diagnostic(f"engine.extra.{option}", "unused", message, severity="warning")
    for key in sorted(engine.build.model_fields_set):
        message = f"{key} is for trtllm-build; the torch engine has no use for it"
        yield Diagnostic(f"engine.build.{key}", "unused", message, severity="warning")
    if serving.fast_logits:
        message = "the torch engine hands no logits from GPU to GPU"
        yield Diagnostic("serving.fast_logits", "unused", message, severity="warning")
