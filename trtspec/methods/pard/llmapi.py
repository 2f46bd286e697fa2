# SPDX-License-Identifier: Apache-2.0
"""PARD in the LLM API, which verifies the next step's masks too."""

from __future__ import annotations

from typing import Any

from trtspec.backends.context import PlanContext
from trtspec.backends.llmapi.methods import LlmApiMethod
from trtspec.methods.draft_head import mask_token


def _fields(context: PlanContext) -> dict[str, Any]:
    # config.json may have two mask keys, and upstream prefers the other one
    mask = mask_token(context.sources["draft"])
    return {} if mask is None else {"mask_token_id": mask}


def _step_tokens(tokens: int) -> int:
    """NVIDIA/TensorRT-LLM:tensorrt_llm/llmapi/llm_args.py@0004396, PARDDecodingConfig.tokens_per_gen_step."""
    return 2 * tokens - 1


METHOD = LlmApiMethod(_fields, _step_tokens)
