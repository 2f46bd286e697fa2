# SPDX-License-Identifier: Apache-2.0
"""Rules for FP8: limits of a storage format that do not depend on the GPU."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase

from trtspec.backends.context import PlanContext
from trtspec.backends.tensorrt_llm.modes import EAGLE, EXTERNAL, LOOKAHEAD, MEDUSA, REDRAFTER, speculation_mode
from trtspec.backends.tensorrt_llm.rules.sources import (
    ATTENTION,
    ATTENTION_PLUGIN,
    BATCHING,
    BUILDER,
    QUANTIZE,
    issue,
)
from trtspec.backends.tensorrt_llm.specs import engine_specs
from trtspec.checkpoints.rules import layer_tensor
from trtspec.core.diagnostics import Diagnostic

FORMATS = {"none": "16-bit", "fp8_rowwise": "fp8_rowwise"}


def check_cache_reuse(context: PlanContext) -> Iterator[Diagnostic]:
    """An FP8 cache without FP8 weights disables paged context attention, and therefore reuse.

    External drafts come with the whole text in each step, and the runtime rejects the target without reuse.
    """
    is_needed = speculation_mode(context) == EXTERNAL
    for spec in engine_specs(context):
        if not spec.has_paged_context_fmha and spec.mode != EAGLE:
            message = (
                f"an FP8 KV cache with {FORMATS[spec.quant_format.weights]} weights disables paged context attention,"
            )
            message += " and therefore KV cache reuse and chunked prompts"
            message += f"; {context.recipe.speculation.method} needs reuse" if is_needed else ""
            path, hint = f"{spec.path}.quantization.kv_cache", "set weights: fp8 too, or kv_cache: none"
            source = f"{BUILDER}, {BATCHING}"
            yield Diagnostic(path, "kv-reuse", message, hint, "error" if is_needed else "warning", source)


def check_rowwise_trees(context: PlanContext) -> Iterator[Diagnostic]:
    """Attention with row-wise scales does not pass on whether drafts are verified, and the build fails."""
    target = engine_specs(context)[0]
    if target.quant_format.weights == "fp8_rowwise" and target.mode in (LOOKAHEAD, MEDUSA, REDRAFTER):
        message = f"{context.recipe.speculation.method} engines do not support fp8_rowwise weights"
        source = f"{ATTENTION}, {issue(2641)}"
        yield Diagnostic("target.quantization.weights", "fp8", message, "weights: fp8", source=source)


def check_rowwise_head_norms(context: PlanContext) -> Iterator[Diagnostic]:
    """Attention with row-wise scales lacks query and key norms; the loader only warns about their weights."""
    for spec in engine_specs(context):
        if spec.quant_format.weights == "fp8_rowwise" and spec.config.qk_norm:
            message = f"fp8_rowwise engines of {spec.config.architecture} omit its norms of queries and keys,"
            message += " so their output is wrong"
            path = f"{spec.path}.quantization.weights"
            yield Diagnostic(path, "fp8", message, "weights: fp8", source=QUANTIZE)


def check_fp8_output_scale(context: PlanContext) -> Iterator[Diagnostic]:
    """FP8 context attention writes its output in FP8, with the scale of the next layer."""
    models = {"target": context.recipe.target, "draft": context.recipe.speculation.draft}
    for spec in engine_specs(context):
        asked = models[spec.role]
        if asked is None or asked.quantization.weights != "fp8" or not spec.has_fp8_context_fmha:
            continue
        for number, pattern in enumerate(asked.quantization.exclude):
            if any(fnmatchcase(layer_tensor(n, "attention.dense"), pattern) for n in range(spec.config.num_layers)):
                message = f"{pattern!r} keeps attention.dense in 16 bits, but with an FP8 KV cache its input is FP8"
                hint = "exclude modules without attention.dense, or kv_cache: none"
                path = f"{spec.path}.quantization.exclude.{number}"
                yield Diagnostic(path, "fp8", message, hint, source=f"{ATTENTION}, {ATTENTION_PLUGIN}")


RULES = (
    check_cache_reuse,
    check_rowwise_trees,
    check_rowwise_head_norms,
    check_fp8_output_scale,
)
