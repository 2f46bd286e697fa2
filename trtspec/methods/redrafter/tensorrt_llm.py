# SPDX-License-Identifier: Apache-2.0
"""ReDrafter in TensorRT engines."""

from __future__ import annotations

from trtspec.backends.tensorrt_llm.specs import REDRAFTER, EngineMethod
from trtspec.methods.redrafter import RedrafterOptions


def _is_greedy(options: RedrafterOptions) -> bool:
    return options.greedy


METHOD = EngineMethod(REDRAFTER, _is_greedy)
