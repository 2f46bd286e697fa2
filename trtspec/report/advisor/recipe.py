# SPDX-License-Identifier: Apache-2.0
"""Facts for the advisor from a recipe: its draft, the free GPU memory, and predictions for the load."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from trtspec.backends.base import find_backend
from trtspec.backends.context import PlanContext
from trtspec.core.diagnostics import RecipeError
from trtspec.planning.check.recipe import check_recipe
from trtspec.planning.memory import largest_batch
from trtspec.planning.prediction.predict import Prediction, Unpredictable, predict
from trtspec.planning.prediction.speedup import MOST_TEXTS, published_acceptance
from trtspec.recipe.load import LoadedRecipe
from trtspec.recipe.schema import Recipe
from trtspec.report.advisor.advice import AdvisorFact, AdvisorFacts, with_derived

USUAL_RATE = 0.8
DRAFTS = {"model": "model", "head": "head"}
FURTHER = "mtp"


def recipe_facts(loaded: LoadedRecipe, told: AdvisorFacts) -> tuple[dict[str, AdvisorFact], list[str]]:
    """Return the facts from a recipe, and notes; raises RecipeError if the recipe has errors.

    `told` are the facts known so far, of which the load and the measured acceptance rate are used.
    """
    checked = check_recipe(loaded)
    if checked.errors or checked.context is None:
        raise RecipeError(checked.diagnostics)
    context, known = checked.context, with_derived(told)
    found, notes = dict(_described(context)), []
    try:
        found |= predicted_facts(predict(context), context.recipe, known)
    except Unpredictable as reason:
        notes.append(f"no prediction for {loaded.recipe.name}: {reason}")
    return {name: AdvisorFact(value, loaded.recipe.name) for name, value in found.items()}, notes


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


def predicted_facts(found: Prediction, recipe: Recipe, known: AdvisorFacts) -> dict[str, float]:
    """Return the break-even batch size, and the lowest predicted speed-up over batch sizes up to the load.

    Batch sizes are limited to max_batch_size, because further requests wait. The lowest speed-up makes the result
    monotonic in the load: with experts, small batches can be slower than larger ones.
    """
    rate, pair = _rate(found, recipe.speculation.method, known), found.pair
    answers: dict[str, float] = {"break_even_batch": pair.break_even(rate, found.depth) or MOST_TEXTS + 1}
    if "concurrency" in known:
        most = min(max(1, ceil(known["concurrency"].value)), recipe.engine.max_batch_size, MOST_TEXTS)
        answers["batch_size"] = most
        answers["predicted_speedup"] = min(pair.speedup(rate, found.depth, texts) for texts in range(1, most + 1))
    return answers


def _rate(found: Prediction, method: str, known: AdvisorFacts) -> float:
    """Return the known acceptance rate, else the mean published for the method, else USUAL_RATE."""
    if "acceptance_rate" in known:
        return float(known["acceptance_rate"].value)
    published = published_acceptance(method)
    return sum(published.at_depth(found.depth)) / found.depth if published else USUAL_RATE
