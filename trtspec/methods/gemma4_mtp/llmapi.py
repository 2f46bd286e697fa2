# SPDX-License-Identifier: Apache-2.0
"""Gemma 4 assistants in the LLM API, whose decoding type is MTP with a speculative_model.

NVIDIA/TensorRT-LLM pulls 15833 and 17837; the names of supported targets are in
NVIDIA/TensorRT-LLM:tensorrt_llm/_torch/speculative/utils.py (main). Blocks of the KV cache are not reused
(examples/models/core/gemma/README.md and docs/source/models/supported-models.md@00b6d5a2, "KV Cache Reuse").
"""

from __future__ import annotations

from collections.abc import Iterator

from trtspec.backends.common.checks import source_architecture
from trtspec.backends.context import PlanContext
from trtspec.backends.llmapi.methods import LlmApiMethod
from trtspec.core.diagnostics import Diagnostic
from trtspec.methods.gemma4_mtp import ASSISTANT, DRAFT, assistant_type, check_pair

TARGETS = ("Gemma4ForCausalLM", "Gemma4ForConditionalGeneration")
SOURCE = "NVIDIA/TensorRT-LLM:examples/models/core/gemma/README.md, pull 15833"
MODEL = "NVIDIA/TensorRT-LLM:tensorrt_llm/_torch/models/modeling_gemma4.py@7d494403"


def _check(context: PlanContext) -> Iterator[Diagnostic]:
    target, draft = context.sources["target"], context.sources["draft"]
    found = list(check_pair(target, draft, context.recipe.engine.max_seq_len))
    yield from found
    architecture = source_architecture(target)
    if not found and (assistant_type(draft) != ASSISTANT or architecture not in TARGETS):
        message = f"TensorRT-LLM {context.version} does not draft with assistants of the type {assistant_type(draft)} "
        message += f"for {architecture}"
        hint = "supported: the assistants of Gemma 4 E2B, E4B, 26B-A4B and 31B; vLLM and SGLang also run that of 12B"
        yield Diagnostic(DRAFT, "class", message, hint, source=SOURCE)
    if context.recipe.target.parallel.pipeline > 1:
        message = "TensorRT-LLM does not run Gemma 4 with pipeline parallelism"
        yield Diagnostic("target.parallel.pipeline", "parallel", message, "use tensor parallelism only", source=MODEL)


METHOD = LlmApiMethod(check=_check, reuses_blocks=False)
