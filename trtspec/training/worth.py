# SPDX-License-Identifier: Apache-2.0
"""Whether drafting with a draft can pay at all, before anything is timed."""

from __future__ import annotations

from trtspec.backends.common.sources import stored_format
from trtspec.backends.context import PlanContext
from trtspec.planner.predict import draft_work
from trtspec.planner.work import work_of


def step_cost(context: PlanContext) -> float:
    """Return what a step that drafts takes, in steps of the target alone, each as long as its weights take to read.

    That is so for one request at a time (arXiv:2211.17192, theorem 3.8): a draft that gives fewer tokens a step never
    pays.
    """
    target = work_of(context.sources["target"], stored_format(context.sources["target"], context.recipe.target))
    draft = draft_work(context, target)
    passes = {"none": 0, "one": 1, "each": context.draft_shape.max_depth}[context.method.draft_passes]
    return 1.0 + (passes * draft.weight_bytes(1) / target.weight_bytes(1) if draft else 0.0)
