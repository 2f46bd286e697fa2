# SPDX-License-Identifier: Apache-2.0
"""What TensorRT-LLM's engines make of a request that samples."""

from __future__ import annotations

from trtspec.backends.base import Case
from trtspec.backends.tensorrt_llm.specs import EAGLE, LOOKAHEAD, MEDUSA
from trtspec.methods.redrafter import RedrafterOptions

# Medusa: upstream supports temperature 0 alone (NVIDIA/TensorRT-LLM:examples/medusa/README.md@0f041b7b). Lookahead: the
# best of the target's logits is taken (cpp/tensorrt_llm/layers/lookaheadDecodingLayer.cpp@05cc2c11). EAGLE: so it is
# without a threshold for typical acceptance (examples/eagle/README.md@585c7565), which the Triton backend has no
# parameter for (triton_backend/inflight_batcher_llm/src/model_instance_state.cc@c8c6df08).
GREEDY_MODES = (MEDUSA, EAGLE, LOOKAHEAD)


def is_greedy_only(case: Case) -> bool:
    """Return whether the target's engine takes the most probable token whatever a request says."""
    if isinstance(case.options, RedrafterOptions):
        return case.options.greedy
    return case.method.engine_mode in GREEDY_MODES
