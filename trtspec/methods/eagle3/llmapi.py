# SPDX-License-Identifier: Apache-2.0
"""EAGLE-3 in the LLM API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

from trtspec.backends.common.checks import OPTIONS
from trtspec.backends.common.trtllm_versions import minor_version
from trtspec.backends.context import PlanContext
from trtspec.backends.llmapi.check import LLM_ARGS
from trtspec.backends.llmapi.methods import LlmApiMethod
from trtspec.core.diagnostics import Diagnostic
from trtspec.methods.eagle3 import Eagle3Options

# Versions from here on draft trees (NVIDIA/TensorRT-LLM:tensorrt_llm/llmapi/llm_args.py@0004396).
DRAFTS_TREES = (1, 3)


def _fields(context: PlanContext) -> dict[str, Any]:
    if not (top_k := cast(Eagle3Options, context.options).top_k):
        return {}
    return {
        "use_dynamic_tree": True,
        "dynamic_tree_max_topK": top_k,
        "max_total_draft_tokens": context.draft_shape.max_tokens,
    }


def _check(context: PlanContext) -> Iterator[Diagnostic]:
    if not (top_k := cast(Eagle3Options, context.options).top_k):
        return
    path, shape = f"{OPTIONS}.top_k", context.draft_shape
    most = top_k * shape.max_depth
    if minor_version(context.version) < DRAFTS_TREES:
        first = ".".join(map(str, DRAFTS_TREES))
        message = f"the PyTorch backend drafts trees only from {first} on; {context.version} drafts a chain"
        yield Diagnostic(path, "version", message, "remove top_k and nodes", source=f"{LLM_ARGS}, eagle_choices")
    elif shape.max_tokens > most:
        message = f"the tree has {shape.max_tokens} nodes, but the LLM API supports at most top_k * draft_len = {most}"
        yield Diagnostic(f"{OPTIONS}.nodes", "out-of-range", message, source=f"{LLM_ARGS}, max_total_draft_tokens")


METHOD = LlmApiMethod(_fields, has_head=True, check=_check)
