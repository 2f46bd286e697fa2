# SPDX-License-Identifier: Apache-2.0
"""MTP layers in the LLM API."""

from __future__ import annotations

from collections.abc import Iterator

from trtspec.backends.common.checks import METHOD as KEY
from trtspec.backends.common.trtllm_versions import find_version_spec
from trtspec.backends.context import PlanContext
from trtspec.backends.llmapi.methods import LlmApiMethod
from trtspec.core.diagnostics import Diagnostic
from trtspec.methods.mtp import count_layers

SOURCE = "NVIDIA/TensorRT-LLM:tensorrt_llm/_torch/models/modeling_speculative.py, MTPForCausalLM"


def _check(context: PlanContext) -> Iterator[Diagnostic]:
    config = context.sources["target"].config
    layers, model_type = count_layers(config), str(config.get("model_type"))
    if not layers:
        yield Diagnostic(KEY, "no-draft", "the target lacks MTP layers", "use method: ngram")
    elif 1 < layers < context.draft_shape.max_depth:
        message = f"the target has {layers} MTP layers, one for each draft token"
        yield Diagnostic("speculation.draft_len", "out-of-range", message, f"at most {layers}", source=SOURCE)
    if model_type not in find_version_spec(context.version).api.methods["mtp"].models:
        message = f"TensorRT-LLM {context.version} may not support MTP layers of {model_type}"
        yield Diagnostic(KEY, "version", message, severity="warning", source=SOURCE)


METHOD = LlmApiMethod(check=_check)
