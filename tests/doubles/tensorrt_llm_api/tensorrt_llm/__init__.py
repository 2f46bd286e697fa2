# SPDX-License-Identifier: Apache-2.0
"""A double of TensorRT-LLM's LLM API with strict arguments; responses come from a table in the model's directory.

TRTLLM_DOUBLE selects the version whose arguments it accepts. It computes nothing and proves nothing about TensorRT-LLM.
"""

from tensorrt_llm.llm import LLM, SamplingParams

__all__ = ["LLM", "SamplingParams"]
