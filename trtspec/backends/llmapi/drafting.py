# SPDX-License-Identifier: Apache-2.0
"""Check whether the LLM API drafts inside the target's class or separately, and whether the target supports it."""

from __future__ import annotations

from collections.abc import Iterator

from trtspec.backends.common.trtllm_versions import find_version_spec, version_specs
from trtspec.backends.context import PlanContext
from trtspec.core.diagnostics import Diagnostic

METHOD = "speculation.method"
MODELS = "NVIDIA/TensorRT-LLM:tensorrt_llm/_torch/models"
INSIDE_SOURCE = f"{MODELS}/modeling_speculative.py@00679c66, SpecDecOneEngineForCausalLM"


def target_architecture(context: PlanContext) -> str:
    """Return the target's class from its config.json, or ""."""
    if context.target_config:
        return context.target_config.architecture
    named = context.sources["target"].config.get("architectures")
    return str(named[0]) if isinstance(named, list) and named else ""


def drafts_separately(context: PlanContext) -> bool:
    """Return whether the method has to draft outside the target, because its class does not support drafting inside."""
    api = find_version_spec(context.version).api
    kind = api.methods[context.recipe.speculation.method]
    return bool(kind.beside) and target_architecture(context) in api.plain


def check_target_architecture(context: PlanContext) -> Iterator[Diagnostic]:
    """Yield an error if the target's class is a plain decoder and the method can draft only inside the target."""
    method, architecture = context.recipe.speculation.method, target_architecture(context)
    if find_version_spec(context.version).api.takes(method, architecture):
        return
    others = [minor for minor, spec in version_specs().items() if spec.api.takes(method, architecture)]
    message = f"TensorRT-LLM {context.version} drafts inside the target, but {architecture} is a plain decoder"
    hint = f"engine.version: {others[-1]}, or method: ngram" if others else "method: ngram"
    yield Diagnostic(METHOD, "architecture", message, hint, source=INSIDE_SOURCE)
