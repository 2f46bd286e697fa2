# SPDX-License-Identifier: Apache-2.0
"""A stand-in for TensorRT-LLM's LLM API: strict about what it is told, answers from a table in the model's directory.

TRTLLM_DOUBLE says which version's spelling it takes. It computes nothing and proves nothing about TensorRT-LLM.
"""

from tensorrt_llm.llm import LLM, SamplingParams

__all__ = ["LLM", "SamplingParams"]
