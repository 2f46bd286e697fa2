# SPDX-License-Identifier: Apache-2.0
"""The --speculative_decoding_mode of trtllm-build for each speculation method."""

from __future__ import annotations

from trtspec.backends.context import PlanContext
from trtspec.methods.base import DraftShape

# NVIDIA/TensorRT-LLM:tensorrt_llm/commands/build.py@65f1d153.
EXTERNAL, MEDUSA, EAGLE = "draft_tokens_external", "medusa", "eagle"
LOOKAHEAD, REDRAFTER = "lookahead_decoding", "explicit_draft_tokens"

# By method; prompt lookup drafts outside the engine, like a draft model.
MODES = {
    "none": "",
    "draft_target": EXTERNAL,
    "ngram": EXTERNAL,
    "medusa": MEDUSA,
    "eagle": EAGLE,
    "lookahead": LOOKAHEAD,
    "redrafter": REDRAFTER,
}


def speculation_mode(context: PlanContext) -> str:
    """Return the mode of a recipe's method, "" without a drafter and for unsupported methods."""
    return MODES.get(context.recipe.speculation.method, "")


def build_arguments(method: str, shape: DraftShape) -> list[str]:
    """Return trtllm-build's arguments for the target's engine; empty for an unsupported method.

    NVIDIA/TensorRT-LLM, tensorrt_llm/commands/build.py, 1.0 to 1.2: max_draft_len counts all draft tokens.
    """
    mode = MODES.get(method, "")
    return ["--speculative_decoding_mode", mode, "--max_draft_len", str(shape.max_tokens)] if mode else []
