# SPDX-License-Identifier: Apache-2.0
"""Rules for the placement: GPUs and ranks that the runtime rejects, and draft logits that cannot be transferred."""

from __future__ import annotations

from collections.abc import Iterator

from trtspec.backends.context import PlanContext
from trtspec.backends.tensorrt_llm.modes import EXTERNAL, speculation_mode
from trtspec.backends.tensorrt_llm.rules.sources import DRAFT_README, EXECUTOR, TRITON, WORLD
from trtspec.backends.tensorrt_llm.specs import engine_specs, uses_draft_logits
from trtspec.core.diagnostics import Diagnostic

# the number of GPUs per node in the checkpoint's mapping (checkpoints/trtllm.py)
GPUS_PER_NODE = 8


def check_rank_gpus(context: PlanContext) -> Iterator[Diagnostic]:
    """An engine has as many GPUs as ranks."""
    placement = context.recipe.serving.placement
    for spec in engine_specs(context) if placement else ():
        if len(spec.gpu_ids) != spec.mapping.ranks:
            message = f"the {spec.role} is divided over {spec.mapping.ranks} GPUs, but {len(spec.gpu_ids)} are listed"
            hint = f"list {spec.mapping.ranks}, or change {spec.path}.parallel"
            yield Diagnostic(f"serving.placement.{spec.role}", "placement", message, hint, source=EXECUTOR)


def check_single_node(context: PlanContext) -> Iterator[Diagnostic]:
    """Orchestrated workers and the launch command support one node, whose GPUs are numbered from 0."""
    placement = context.recipe.serving.placement
    for spec in engine_specs(context):
        if spec.mapping.ranks > GPUS_PER_NODE:
            message = (
                f"the {spec.role} has {spec.mapping.ranks} ranks, but engines are served on one node of {GPUS_PER_NODE}"
            )
            yield Diagnostic(f"{spec.path}.parallel", "placement", message, source=WORLD)
        elif placement and max(spec.gpu_ids) >= GPUS_PER_NODE:
            message = f"GPU {max(spec.gpu_ids)}: a node's GPUs are numbered 0 to {GPUS_PER_NODE - 1}"
            yield Diagnostic(f"serving.placement.{spec.role}", "placement", message, source=WORLD)


def check_draft_placement(context: PlanContext) -> Iterator[Diagnostic]:
    """Only a draft model has separate GPUs."""
    placement = context.recipe.serving.placement
    if placement and placement.draft and context.draft_config is None:
        message = f"{context.recipe.speculation.method} does not use a draft model"
        yield Diagnostic("serving.placement.draft", "placement", message, "remove draft", source=TRITON)


def check_fast_logits(context: PlanContext) -> Iterator[Diagnostic]:
    """Fast logits are sent from the draft's workers to the target's, which verify drafts with them."""
    if not context.recipe.serving.fast_logits:
        return
    if context.draft_config is None or speculation_mode(context) != EXTERNAL:
        message = (
            f"fast_logits transfers a draft model's logits, but {context.recipe.speculation.method} does not use one"
        )
        yield Diagnostic("serving.fast_logits", "not-supported", message, "remove it", source=DRAFT_README)
    elif not uses_draft_logits(context):
        message = "fast_logits is ignored without use_draft_logits"
        hint = "use_draft_logits: true, or remove fast_logits"
        yield Diagnostic("serving.fast_logits", "not-supported", message, hint, source=DRAFT_README)


RULES = (check_rank_gpus, check_single_node, check_draft_placement, check_fast_logits)
