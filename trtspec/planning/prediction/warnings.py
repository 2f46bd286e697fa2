# SPDX-License-Identifier: Apache-2.0
"""Warn about recipes that would be slower than their target alone."""

from __future__ import annotations

from trtspec.backends.base import find_backend
from trtspec.backends.context import PlanContext
from trtspec.core.diagnostics import Diagnostic
from trtspec.planning.prediction.predict import Prediction, Unpredictable, predict
from trtspec.recipe.schema import Speculation

HIGH_RATE = 0.9  # acceptance rates are rarely higher


def warn_if_slower(context: PlanContext) -> list[Diagnostic]:
    """Return a warning if drafting cannot pay at the recipe's max_batch_size at any realistic acceptance rate."""
    texts = context.recipe.engine.max_batch_size
    try:
        found = predict(context)
    except Unpredictable:
        return []
    depth = scheduled_depth(context.recipe.speculation, found.depth, texts)
    if not depth or (speedup := found.pair.speedup(HIGH_RATE, depth, texts)) >= 1:
        return []
    message = (
        f"with {texts} concurrent requests, drafting {depth} consecutive tokens is slower than the target alone at any "
        f"acceptance rate up to {HIGH_RATE} (predicted: {speedup:.2f}x at that rate on {found.pair.machine.gpu.name})"
    )
    return [Diagnostic("engine.max_batch_size", "never-pays", message, _hint(context, found, depth), "warning")]


def scheduled_depth(speculation: Speculation, depth: int, texts: int) -> int:
    """Return the number of consecutive tokens drafted for a number of requests."""
    if not speculation.schedule:
        return depth
    return next((entry.draft_len for entry in speculation.schedule if texts <= entry.max_batch), 0)


def _hint(context: PlanContext, found: Prediction, depth: int) -> str:
    most = (found.pair.break_even(HIGH_RATE, depth) or 1) - 1
    if not most:
        return "speculation.method: none is faster"
    knobs = find_backend(context.choice.name).knobs
    schedule = ", or set speculation.schedule as proposed by plan" if "schedule" in knobs and found.depths else ""
    return f"it can pay up to {most} requests: lower max_batch_size{schedule}"
