# SPDX-License-Identifier: Apache-2.0
"""Turn a recipe into a prediction, or give the reason why it cannot be predicted; warn if drafting cannot pay."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trtspec.backends.base import find_backend
from trtspec.backends.common.memory import stored_format
from trtspec.backends.context import PlanContext
from trtspec.core.diagnostics import Diagnostic
from trtspec.core.errors import CheckpointError
from trtspec.core.gpus import GPUS, Gpu
from trtspec.planning.prediction.flops import Work, further_work, head_work, model_work
from trtspec.planning.prediction.speedup import DrafterCost, GpuGroup, TargetDraftPair, reading_cost
from trtspec.recipe.schema import Speculation

LEAST_WEIGHTS = 10**9  # steps of smaller targets are mostly overhead, which was fitted to 7 billion weights and more


class Unpredictable(Exception):
    """A recipe cannot be predicted; the message is the reason."""


@dataclass(frozen=True)
class Prediction:
    """A pair with the recipe's draft: `depth` consecutive tokens, and the `depths` that the method supports.

    `depths` is empty if options determine the length, as for trees and nets trained for a fixed block.
    """

    pair: TargetDraftPair
    depth: int
    depths: Sequence[int]


def predict(context: PlanContext) -> Prediction:
    """Return the prediction for a recipe that passed its check; Unpredictable if that is impossible."""
    shape = context.draft_shape
    if not shape.max_depth:
        raise Unpredictable("nothing is drafted")
    machine = GpuGroup(_gpu(context), context.recipe.target.parallel.tensor)
    if machine.tensor > 1 and not machine.gpu.link:
        raise Unpredictable(f"{machine.gpu.name} has an unknown link between GPUs; several cannot be predicted")
    try:
        target = _target_work(context)
        if target.active_numbers < LEAST_WEIGHTS:
            raise Unpredictable("the target is smaller than any with published speeds")
        work = draft_work(context, target)
    except CheckpointError as error:
        raise Unpredictable(f"the model's shape is unknown: {error.message}") from None
    drafting = DrafterCost(work, _draft_machine(context, machine), context.method.draft_passes, _breadth(context))
    pair = TargetDraftPair(target, machine, drafting, context.resolved.engine.max_seq_len // 2)
    is_block = context.method.drafts_with == "head" and context.method.draft_passes == "one"
    is_free = shape.max_depth == shape.max_tokens and not is_block
    return Prediction(pair, shape.max_depth, context.method.draft_lens if is_free else ())


def step_cost(context: PlanContext) -> float:
    """Return the cost of a step that drafts in steps of the target alone, by the time to read weights.

    This holds for one request at a time (arXiv:2211.17192, theorem 3.8); a draft must yield more tokens per step than
    this to pay. Unpredictable if the drafter is unknown.
    """
    target, depth = _target_work(context), context.draft_shape.max_depth
    return reading_cost(target, draft_work(context, target), context.method.draft_passes, depth, _breadth(context))


def _target_work(context: PlanContext) -> Work:
    source = context.sources["target"]
    return model_work(source, stored_format(source, context.recipe.target))


def _gpu(context: PlanContext) -> Gpu:
    if find_backend(context.choice.name).in_process:
        raise Unpredictable("its engine runs on a CPU; measure the speed with trtspec bench")
    gpu = GPUS.get((context.recipe.engine.gpu or "").lower())
    if gpu is None:
        raise Unpredictable("the GPU is unknown: set engine.gpu, as --set engine.gpu=h200")
    return gpu


def _draft_machine(context: PlanContext, target: GpuGroup) -> GpuGroup:
    """Return the GPUs of the draft: its own parallelism for a separate engine, else the target's."""
    draft = context.recipe.speculation.draft
    has_engine = context.method.drafts_with == "model" and find_backend(context.choice.name).converts
    return GpuGroup(target.gpu, draft.parallel.tensor) if draft and has_engine else target


def _breadth(context: PlanContext) -> float:
    """Return the number of verified tokens per position."""
    return context.draft_shape.max_tokens / context.draft_shape.max_depth


def draft_work(context: PlanContext, target: Work) -> Work | None:
    """Return the work of a drafter's pass, None without a model; Unpredictable if it is unknown."""
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
