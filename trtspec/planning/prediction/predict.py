# SPDX-License-Identifier: Apache-2.0
"""From a recipe to its prediction: the pair that the other modules compute with, or why there is none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trtspec.backends.base import find_backend
from trtspec.backends.common.sources import stored_format
from trtspec.backends.context import PlanContext
from trtspec.core.errors import CheckpointError
from trtspec.core.gpus import GPUS, Gpu
from trtspec.planning.prediction.flops import Work, further_work, head_work, work_of
from trtspec.planning.prediction.roofline import Machine
from trtspec.planning.prediction.speedup import Drafting, Pair, reading_cost

LEAST_WEIGHTS = 10**9  # a step of a smaller target is mostly what surrounds it, which was fitted to 7 billion and more


class Unpredictable(Exception):
    """Why nothing is predicted, in a sentence for people."""


@dataclass(frozen=True)
class Prediction:
    """A pair, with what the recipe drafts: `depth` tokens in a row, and the `depths` that the method could.

    `depths` is empty where options decide, as of a tree, or a net that was trained for a block of so many.
    """

    pair: Pair
    depth: int
    depths: Sequence[int]


def predict(context: PlanContext) -> Prediction:
    """Return what can be computed of a recipe that passed its check; raises Unpredictable where that is nothing."""
    shape = context.draft_shape
    if not shape.max_depth:
        raise Unpredictable("nothing is drafted")
    machine = Machine(_gpu(context), context.recipe.target.parallel.tensor)
    if machine.tensor > 1 and not machine.gpu.link:
        raise Unpredictable(f"{machine.gpu.name} is alone in its machine: how fast several are together is not known")
    try:
        target = _target_work(context)
        if target.active_numbers < LEAST_WEIGHTS:
            raise Unpredictable("the target is smaller than any of which speeds were published")
        work = draft_work(context, target)
    except CheckpointError as error:
        raise Unpredictable(f"the model's shape is not known: {error.message}") from None
    drafting = Drafting(work, _draft_machine(context, machine), context.method.draft_passes, _breadth(context))
    pair = Pair(target, machine, drafting, context.resolved.engine.max_seq_len // 2)
    is_block = context.method.drafts_with == "head" and context.method.draft_passes == "one"
    is_free = shape.max_depth == shape.max_tokens and not is_block
    return Prediction(pair, shape.max_depth, context.method.draft_lens if is_free else ())


def step_cost(context: PlanContext) -> float:
    """Return what a step that drafts takes, in steps of the target alone, each as long as its weights take to read.

    That is so for one request at a time (arXiv:2211.17192, theorem 3.8): a draft that gives fewer tokens a step does
    not pay. Raises Unpredictable where what drafts is not known.
    """
    target, depth = _target_work(context), context.draft_shape.max_depth
    return reading_cost(target, draft_work(context, target), context.method.draft_passes, depth, _breadth(context))


def _target_work(context: PlanContext) -> Work:
    source = context.sources["target"]
    return work_of(source, stored_format(source, context.recipe.target))


def _gpu(context: PlanContext) -> Gpu:
    if find_backend(context.choice.name).in_process:
        raise Unpredictable("its engine runs on a CPU: trtspec bench measures how fast")
    gpu = GPUS.get((context.recipe.engine.gpu or "").lower())
    if gpu is None:
        raise Unpredictable("the GPU is not known: name it under engine.gpu, as --set engine.gpu=h200")
    return gpu


def _draft_machine(context: PlanContext, target: Machine) -> Machine:
    """Return where a draft model runs: an engine of its own is divided as the recipe says, all others as the target."""
    draft = context.recipe.speculation.draft
    has_engine = context.method.drafts_with == "model" and find_backend(context.choice.name).converts
    return Machine(target.gpu, draft.parallel.tensor) if draft and has_engine else target


def _breadth(context: PlanContext) -> float:
    """Return how many tokens are verified for each that may follow another."""
    return context.draft_shape.max_tokens / context.draft_shape.max_depth


def draft_work(context: PlanContext, target: Work) -> Work | None:
    """Return what a pass of what drafts takes, None without one; raises Unpredictable where that is not known."""
    draft, method, source = context.recipe.speculation.draft, context.method, context.sources.get("draft")
    if method.draft_passes == "none":
        return None
    if draft and source and method.drafts_with == "model":
        return work_of(source, stored_format(source, draft))
    if source and method.drafts_with == "head":
        return head_work(source, target)
    work = further_work(context.sources["target"], target)
    if work is None:
        raise Unpredictable("what of the target drafts is not in its headers: measure it")
    return work
