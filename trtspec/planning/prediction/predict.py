# SPDX-License-Identifier: Apache-2.0
"""Prediction of the speed-up that a recipe gets from drafting, and the warning that drafting cannot pay off.

`describe_prediction` returns the section `predicted` of `plan --json`, with costs and the best placement of the draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from trtspec.backends.base import find_backend
from trtspec.backends.common.memory import stored_format
from trtspec.backends.context import PlanContext
from trtspec.core.diagnostics import Diagnostic
from trtspec.core.errors import CheckpointError
from trtspec.core.gpus import GPUS, Gpu
from trtspec.planning.memory import largest_batch
from trtspec.planning.prediction.flops import Work, further_work, head_work, model_work
from trtspec.planning.prediction.speedup import (
    DrafterCost,
    GpuGroup,
    TargetDraftPair,
    expected_tokens,
    published_acceptance,
    reading_cost,
    tree_tokens,
)
from trtspec.recipe.schema import Speculation

LEAST_WEIGHTS = 10**9  # smaller targets are dominated by overhead, which was fitted to models from 7 billion weights on


class Unpredictable(Exception):
    """Raised if the speed of a recipe cannot be predicted; the message is the reason."""


@dataclass(frozen=True)
class Prediction:
    """Inputs of a prediction: the costs of target and draft, the recipe's draft length, and the supported lengths.

    `depths` is empty if the options determine the length, as for trees and for block drafters trained for a fixed
    length.
    """

    pair: TargetDraftPair
    depth: int
    depths: Sequence[int]


def predict(context: PlanContext) -> Prediction:
    """Return the prediction for a recipe that passed its check; raises Unpredictable with the reason otherwise."""
    shape = context.draft_shape
    if not shape.max_depth:
        raise Unpredictable("nothing is drafted")
    if find_backend(context.choice.name).in_process:
        raise Unpredictable("its engine runs on a CPU; measure the speed with trtspec bench")
    gpu = GPUS.get((context.recipe.engine.gpu or "").lower())
    if gpu is None:
        raise Unpredictable("the GPU is unknown: set engine.gpu, as --set engine.gpu=h200")
    machine = GpuGroup(gpu, context.recipe.target.parallel.tensor)
    if machine.tensor > 1 and not machine.gpu.link:
        raise Unpredictable(f"{machine.gpu.name} has an unknown link between GPUs; several cannot be predicted")
    try:
        target = _target_work(context)
        if target.active_numbers < LEAST_WEIGHTS:
            raise Unpredictable("the target is smaller than any with published speeds")
        work = draft_work(context, target)
    except CheckpointError as error:
        raise Unpredictable(f"the model's shape is unknown: {error.message}") from None
    draft = context.recipe.speculation.draft
    has_engine = context.method.drafts_with == "model" and find_backend(context.choice.name).converts
    own = GpuGroup(machine.gpu, draft.parallel.tensor) if draft and has_engine else machine
    drafting = DrafterCost(work, own, context.method.draft_passes, _breadth(context))
    pair = TargetDraftPair(target, machine, drafting, context.resolved.engine.max_seq_len // 2)
    is_block = context.method.drafts_with == "head" and context.method.draft_passes == "one"
    is_free = shape.max_depth == shape.max_tokens and not is_block
    return Prediction(pair, shape.max_depth, context.method.draft_lens if is_free else ())


def step_cost(context: PlanContext) -> float:
    """Return the cost of a step that drafts and verifies, relative to a step of the target alone.

    The cost is the time to read the weights for one request (arXiv:2211.17192, theorem 3.8). Drafting pays off if it
    yields more tokens per step than this cost. Raises Unpredictable if the drafter is unknown.
    """
    target, depth = _target_work(context), context.draft_shape.max_depth
    return reading_cost(target, draft_work(context, target), context.method.draft_passes, depth, _breadth(context))


def _target_work(context: PlanContext) -> Work:
    source = context.sources["target"]
    return model_work(source, stored_format(source, context.recipe.target))


def _breadth(context: PlanContext) -> float:
    """Return the number of verified tokens per draft position; 1 for a chain, more for a tree."""
    return context.draft_shape.max_tokens / context.draft_shape.max_depth


def draft_work(context: PlanContext, target: Work) -> Work | None:
    """Return the work of a drafter's forward pass, or None for a drafter without weights.

    Raises Unpredictable if the work is unknown.
    """
    draft, method, source = context.recipe.speculation.draft, context.method, context.sources.get("draft")
    if method.draft_passes == "none":
        return None
    if draft and source and method.drafts_with == "model":
        return model_work(source, stored_format(source, draft))
    if source and method.drafts_with == "head":
        return head_work(source, target)
    work = further_work(context.sources["target"], target)
    if work is None:
        raise Unpredictable("the headers do not show which part of the target drafts; measure it")
    return work


HIGH_RATE = 0.9  # acceptance rates are rarely higher


def warn_if_slower(context: PlanContext) -> list[Diagnostic]:
    """Return a warning if drafting cannot pay off at the recipe's max_batch_size at any realistic acceptance rate."""
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
    """Return the draft length for `texts` concurrent requests: `depth`, unless the recipe has a schedule."""
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


def dollars_per_million(gpu_price: float, gpus: int, tokens_per_s: float) -> float:
    """Return the dollars per million tokens on fully used GPUs; `gpu_price` is in dollars per GPU and hour."""
    return gpu_price * gpus / 3600 / tokens_per_s * 1e6


# A CPU as a draft device: eight channels of DDR5-4800, 56 cores with AMX.
CPU = Gpu("cpu", "", 0, 0, 307e9, 50e12, 0, 0, "https://www.intel.com/content/www/us/en/products/sku/231746/")


@dataclass(frozen=True)
class PlacementOption:
    """A possible placement of a draft: the seconds of a draft pass, the speed-up, and the speed-up per GPU in use.

    `speedup_by_gpu` is 0 if the draft does not fit.
    """

    where: str
    pass_s: float
    speedup: float
    speedup_by_gpu: float
    fits: bool


@dataclass(frozen=True)
class PlacementChoice:
    best: PlacementOption
    why: str
    places: tuple[PlacementOption, ...]


def choose_placement(pair: TargetDraftPair, rate: float, depth: int, texts: int, *, has_room: bool) -> PlacementChoice:
    """Return the placement of a draft model with the highest speed-up per GPU in use.

    `has_room` is True if the draft fits on the target's GPUs together with the target.
    """
    gpu, ranks = pair.machine.gpu, pair.machine.tensor
    own_gpu = GpuGroup(gpu)

    def evaluate(where: str, machine: GpuGroup, more_gpus: int, fits: bool) -> PlacementOption:
        there = replace(pair, drafting=replace(pair.drafting, machine=machine))
        speedup, seconds = there.speedup(rate, depth, texts), there.drafting.seconds(1, texts, pair.context)
        return PlacementOption(where, seconds, speedup, speedup * ranks / (ranks + more_gpus) if fits else 0.0, fits)

    places = (
        *((evaluate("all of the target's GPUs", pair.machine, 0, has_room),) if ranks > 1 else ()),
        evaluate("one of the target's GPUs" if ranks > 1 else "the target's GPU", own_gpu, 0, has_room),
        evaluate("a GPU of its own", own_gpu, 1, True),
        evaluate("the CPU", GpuGroup(CPU), 0, True),
    )
    best = max((place for place in places if place.fits), key=lambda place: place.speedup_by_gpu)
    return PlacementChoice(best, _why(best, places, has_room), places)


def _why(best: PlacementOption, places: tuple[PlacementOption, ...], has_room: bool) -> str:
    reason = "" if has_room else "the target's GPUs lack the memory for it; "
    others = [place for place in places if place.fits and place.where != best.where]
    other = max(others, key=lambda place: place.speedup_by_gpu)
    return (
        f"{reason}a draft pass takes {best.pass_s * 1e3:.1f} ms there and {other.pass_s * 1e3:.1f} ms on {other.where},"
        f" where the speed-up for each GPU would be {other.speedup_by_gpu:.2f}x instead of {best.speedup_by_gpu:.2f}x"
    )


BATCHES = (1, 4, 16, 64)
RATES = (0.6, 0.7, 0.8, 0.9)
USUAL_RATE = 0.8  # acceptance rate for comparing placements

Document = dict[str, Any]


def describe_prediction(context: PlanContext, gpu_price: float | None = None) -> Document:
    """Return the prediction for a recipe that drafts, or {"why_not": reason}."""
    try:
        found = predict(context)
    except Unpredictable as reason:
        return {"why_not": str(reason)}
    most, machine = context.recipe.engine.max_batch_size, found.pair.machine
    return {
        "why_not": "",
        "gpu": machine.gpu.name,
        "gpus": context.recipe.target.parallel.ranks,
        "context_tokens": found.pair.context,
        "draft_len": found.depth,
        "draft_ms": _ms(found.pair.drafting.seconds(found.depth, 1, found.pair.context)),
        "batches": [_batch(found, texts, gpu_price, context) for texts in batches_up_to(most)],
        "by_acceptance_rate": {str(rate): _by_rate(found, rate, most) for rate in RATES},
        "published": _published(context, found),
        "largest_batch": largest_batch(context),
        "placement": _placement(context, found),
        "gpu_price": gpu_price,
        "fitted_to": list(machine.reached.fitted_to),
    }


def batches_up_to(most: int) -> list[int]:
    """Return the batch sizes to predict, in ascending order: all of BATCHES up to `most`, and `most` itself."""
    return sorted({*(texts for texts in BATCHES if texts <= most), most})


def _batch(found: Prediction, texts: int, gpu_price: float | None, context: PlanContext) -> Document:
    """Return step times, throughput and speed-ups at one batch size; with a GPU price, also the cost per token."""
    seconds = found.pair.alone_seconds(texts)
    speedup = {str(rate): round(found.pair.speedup(rate, found.depth, texts), 2) for rate in RATES}
    document = {
        "batch": texts,
        "step_ms": _ms(seconds),
        "tokens_per_s": round(texts / seconds, 1),
        "speculative_step_ms": _ms(found.pair.step_seconds(texts, found.depth)),
        "speedup": speedup,
    }
    if gpu_price is None:
        return document
    alone = dollars_per_million(gpu_price, context.recipe.target.parallel.ranks, texts / seconds)
    by_rate = {rate: round(alone / speedup[rate], 6) for rate in speedup}
    return document | {"dollars_per_million_tokens": {"alone": round(alone, 6), **by_rate}}


def _by_rate(found: Prediction, rate: float, most: int) -> Document:
    pair = found.pair
    schedule = pair.schedule(rate, found.depths, most) if found.depths else []
    return {
        "tokens_per_step": round(expected_tokens(rate, found.depth), 2),
        "break_even_batch": pair.break_even(rate, found.depth),
        "best_draft_len": pair.best_depth(rate, found.depths, 1) if found.depths else None,
        "schedule": [{"max_batch": texts, "draft_len": depth} for texts, depth in schedule],
    }


def _published(context: PlanContext, found: Prediction) -> Document | None:
    """Return the speed-up at batch size 1 with the method's published acceptance rates, or None without them."""
    known = published_acceptance(context.recipe.speculation.method)
    if known is None:
        return None
    rates = known.at_depth(found.depth)
    tokens = tree_tokens(rates)
    return {
        "acceptance_rates": rates,
        "tokens_per_step": round(tokens, 2),
        "speedup": round(tokens * found.pair.step_ratio(found.depth, 1), 2),
        "source": known.source,
    }


def _placement(context: PlanContext, found: Prediction) -> Document | None:
    """Return the best placement of a draft model at batch size 1, or None for other drafters."""
    if context.method.drafts_with != "model":
        return None
    gpus = find_backend(context.choice.name).memory(context)
    has_room = all(gpu.total_bytes <= gpu.limit_bytes for gpu in gpus if gpu.limit_bytes)
    placed = choose_placement(found.pair, USUAL_RATE, found.depth, 1, has_room=has_room)
    places = [
        {"where": place.where, "pass_ms": _ms(place.pass_s), "speedup": round(place.speedup, 2), "fits": place.fits}
        for place in placed.places
    ]
    return {"best": placed.best.where, "why": placed.why, "places": places}


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)
