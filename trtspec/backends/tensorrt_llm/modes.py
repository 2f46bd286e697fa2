# SPDX-License-Identifier: Apache-2.0
"""How trtllm-build is told of a speculation method: its --speculative_decoding_mode."""

from __future__ import annotations

from trtspec.backends.context import PlanContext
from trtspec.methods.base import DraftShape

# NVIDIA/TensorRT-LLM:tensorrt_llm/commands/build.py@65f1d153.
EXTERNAL, MEDUSA, EAGLE = "draft_tokens_external", "medusa", "eagle"
LOOKAHEAD, REDRAFTER = "lookahead_decoding", "explicit_draft_tokens"

# By method; prompt lookup drafts outside of the engine, as a draft model does.
MODES = {
    "none": "",
    "draft_target": EXTERNAL,
    "ngram": EXTERNAL,
    "medusa": MEDUSA,
    "eagle": EAGLE,
    "lookahead": LOOKAHEAD,
    "redrafter": REDRAFTER,
}


def mode_of(context: PlanContext) -> str:
    """Return the mode of a recipe's method, "" for the target alone and for what engines do not know."""
    return MODES.get(context.recipe.speculation.method, "")


def build_arguments(method: str, shape: DraftShape) -> list[str]:
    """Return what trtllm-build has to be told for the target's engine; nothing where engines know no such method.

    NVIDIA/TensorRT-LLM, tensorrt_llm/commands/build.py, 1.0 to 1.2: max_draft_len counts all drafted tokens.
    """
    mode = MODES.get(method, "")
    return ["--speculative_decoding_mode", mode, "--max_draft_len", str(shape.max_tokens)] if mode else []
