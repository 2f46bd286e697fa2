# SPDX-License-Identifier: Apache-2.0
"""ReDrafter in TensorRT engines."""

from __future__ import annotations

from trtspec.backends.tensorrt_llm.specs import REDRAFTER, EngineMethod

METHOD = EngineMethod(REDRAFTER, lambda options: bool(options.greedy))
