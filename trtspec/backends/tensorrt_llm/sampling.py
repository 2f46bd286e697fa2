# SPDX-License-Identifier: Apache-2.0
"""How TensorRT-LLM engines handle sampled requests."""

from __future__ import annotations

from trtspec.backends.context import PlanContext
from trtspec.backends.tensorrt_llm.modes import EAGLE, LOOKAHEAD, MEDUSA, speculation_mode
from trtspec.methods.redrafter import RedrafterOptions

# Medusa matches only ids, which is temperature 0 (NVIDIA/TensorRT-LLM:docs/source/legacy/advanced/
# speculative-decoding.md@28af34e8, its limitations). Lookahead takes the argmax of the target's logits
# (cpp/tensorrt_llm/layers/lookaheadDecodingLayer.cpp@05cc2c11). EAGLE is greedy without a threshold for typical
# acceptance (examples/eagle/README.md@585c7565), which the Triton backend does not pass on
# (triton_backend/inflight_batcher_llm/src/model_instance_state.cc@c8c6df08).
GREEDY_MODES = (MEDUSA, EAGLE, LOOKAHEAD)


def is_greedy_only(context: PlanContext) -> bool:
    """Return whether the target's engine always takes the most probable token."""
    if isinstance(context.options, RedrafterOptions):
        return context.options.greedy
    return speculation_mode(context) in GREEDY_MODES
