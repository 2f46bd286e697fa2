# SPDX-License-Identifier: Apache-2.0
"""Recipes for Edge-LLM with the sizes of published models."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests._support import gemma4
from tests.backends.source_contexts import facts, source_context
from trtspec.backends.context import PlanContext
from trtspec.checkpoints.source import Source
from trtspec.core.paths import recipes_dir
from trtspec.methods.base import DraftHead

VERSION = "0.11.0"
MTP = facts({"model_type": "qwen3_5_text", "mtp_num_hidden_layers": 1})
BLOCK = facts({"model_type": "qwen3", "block_size": 16})
LATE = facts({"block_size": 16, "dspark_config": {"sample_from_anchor": False}})
GEMMA, ASSISTANT = (
    Source(recipes_dir() / "models" / "quickstart-target", config, {})  # whose tokenizer both have
    for config in (gemma4.TARGET, gemma4.ASSISTANT)
)
# additional recipe keys by method
METHODS: dict[str, dict[str, Any]] = {
    "none": {},
    "eagle3": {"speculation__draft_len": 5},
    "mtp": {"speculation__draft_len": 3, "target_facts": MTP},
    "dflash": {"speculation__draft_len": 7, "draft_facts": BLOCK},
    "dspark": {"speculation__draft_len": 7, "draft_facts": BLOCK},
    "gemma4_mtp": {"speculation__draft_len": 3, "target_facts": GEMMA, "draft_facts": ASSISTANT},
}


def case(method: str = "none", **changes: Any) -> PlanContext:
    """Return a recipe's context for an RTX 5090; `layers` are the target layers that an EAGLE-3 drafter reads."""
    layers = changes.pop("layers", None)
    changes = {"engine__gpu": "rtx5090", "engine__max_batch_size": 1, **METHODS.get(method, {}), **changes}
    context = source_context("edge_llm", VERSION, method, **changes)
    if method in ("mtp", "none"):
        return replace(context, sources={"target": context.sources["target"]})
    if layers and context.head:
        head = DraftHead(config={"eagle3": {"aux_layers": list(layers)}}, rules=context.head.head.rules)
        return replace(context, head=replace(context.head, head=head))
    return context
