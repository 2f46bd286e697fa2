# SPDX-License-Identifier: Apache-2.0
"""What `check` says of a recipe that would be slower than its target alone."""

from __future__ import annotations

from trtspec.backends.base import find_backend
from trtspec.backends.context import PlanContext
from trtspec.core.diagnostics import Diagnostic
from trtspec.planning.prediction.predict import Prediction, Unpredictable, predict
from trtspec.recipe.schema import Speculation

HIGH_RATE = 0.9  # few drafts are accepted more often


def warn_of_loss(context: PlanContext) -> list[Diagnostic]:
    """Return a warning where drafting cannot pay at the recipe's own max_batch_size, whatever is accepted."""
    texts = context.recipe.engine.max_batch_size
    try:
        found = predict(context)
    except Unpredictable:
        return []
    depth = scheduled_depth(context.recipe.speculation, found.depth, texts)
    if not depth or (speedup := found.pair.speedup(HIGH_RATE, depth, texts)) >= 1:
        return []
    message = (
        f"with {texts} requests at a time, drafting {depth} tokens in a row is slower than the target alone wherever "
        f"the acceptance rate is at most {HIGH_RATE} ({speedup:.2f}x there on {found.pair.machine.gpu.name}, predicted)"
    )
    return [Diagnostic("engine.max_batch_size", "never-pays", message, _hint(context, found, depth), "warning")]


def scheduled_depth(speculation: Speculation, depth: int, texts: int) -> int:
    """Return how many tokens in a row are drafted for so many requests."""
    if not speculation.schedule:
        return depth
    return next((entry.draft_len for entry in speculation.schedule if texts <= entry.max_batch), 0)


def _hint(context: PlanContext, found: Prediction, depth: int) -> str:
    most = (found.pair.break_even(HIGH_RATE, depth) or 1) - 1
    if not most:
        return "speculation.method: none is faster"
    knobs = find_backend(context.choice.name).knobs
    schedule = ", or set speculation.schedule as plan proposes it" if "schedule" in knobs and found.depths else ""
    return f"it can pay up to {most} requests: lower max_batch_size{schedule}"
