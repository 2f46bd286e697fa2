# SPDX-License-Identifier: Apache-2.0
"""What a recipe answers: what drafts, how much memory is left, and what the planner predicts for the load."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from trtspec.backends.base import find_backend
from trtspec.backends.context import PlanContext
from trtspec.core.diagnostics import RecipeError
from trtspec.planning.check.recipe import check_recipe
from trtspec.planning.prediction.capacity import largest_batch
from trtspec.planning.prediction.efficiency import published_acceptance
from trtspec.planning.prediction.predict import Prediction, Unpredictable, predict
from trtspec.planning.prediction.speedup import MOST_TEXTS
from trtspec.recipe.load import LoadedRecipe
from trtspec.recipe.schema import Recipe
from trtspec.report.advisor.questions import Answer, Answers, with_derived

USUAL_RATE = 0.8
DRAFTS = {"model": "model", "head": "head"}
FURTHER = "mtp"


def recipe_answers(loaded: LoadedRecipe, told: Answers) -> tuple[dict[str, Answer], list[str]]:
    """Return what a recipe answers, and what is to be said beside it; raises RecipeError where it has errors.

    `told` are the answers so far: the load that is predicted for, and the acceptance rate if it was measured.
    """
    checked = check_recipe(loaded)
    if checked.errors or checked.context is None:
        raise RecipeError(checked.diagnostics)
    context, known = checked.context, with_derived(told)
    found, notes = dict(_described(context)), []
    try:
        found |= predicted_answers(predict(context), context.recipe, known)
    except Unpredictable as reason:
        notes.append(f"nothing is predicted for {loaded.recipe.name}: {reason}")
    return {name: Answer(value, loaded.recipe.name) for name, value in found.items()}, notes


def _described(context: PlanContext) -> Iterator[tuple[str, float | str]]:
    method, backend = context.recipe.speculation.method, find_backend(context.choice.name)
    if draft := FURTHER if method == FURTHER else DRAFTS.get(context.method.drafts_with):
        yield "draft", draft
    gpus = [] if backend.in_process else [gpu for gpu in backend.memory(context) if gpu.limit_bytes]
    if context.draft_shape.max_depth:
        yield "recipe_method", method
    elif gpus:
        yield "memory_left_gb", max(0.0, min(gpu.limit_bytes - gpu.total_bytes for gpu in gpus) / 1e9)
    if gpus and (most := largest_batch(context)) is not None:
        yield "largest_batch", most


def predicted_answers(found: Prediction, recipe: Recipe, known: Answers) -> dict[str, float]:
    """Return the break-even batch, and the least speed-up of all batches up to the load.

    No batch is larger than the recipe's max_batch_size: further requests wait. The least one, so that more load never
    makes it larger: more experts that are read can make small batches slower than larger ones.
    """
    rate, pair = _rate(found, recipe.speculation.method, known), found.pair
    answers: dict[str, float] = {"break_even_batch": pair.break_even(rate, found.depth) or MOST_TEXTS + 1}
    if "concurrency" in known:
        most = min(max(1, ceil(known["concurrency"].value)), recipe.engine.max_batch_size, MOST_TEXTS)
        answers["batch_size"] = most
        answers["predicted_speedup"] = min(pair.speedup(rate, found.depth, texts) for texts in range(1, most + 1))
    return answers


def _rate(found: Prediction, method: str, known: Answers) -> float:
    """Return the acceptance rate: the one told, else the mean of those published of the method, else a usual one."""
    if "acceptance_rate" in known:
        return float(known["acceptance_rate"].value)
    published = published_acceptance(method)
    return sum(published.of_depth(found.depth)) / found.depth if published else USUAL_RATE
