# SPDX-License-Identifier: Apache-2.0
"""Rules for single model families: parts that their engines omit or that upstream does not support."""

from __future__ import annotations

from collections.abc import Iterator
from math import isclose, log, sqrt

from trtspec.backends.context import PlanContext
from trtspec.backends.tensorrt_llm.rules.sources import (
    DECODER,
    GEMMA_CONFIG,
    GEMMA_MODEL,
    PHI_CONFIG,
    PHI_MODEL,
    PHI_README,
    QUANTIZE,
    issue,
)
from trtspec.backends.tensorrt_llm.specs import LOOKAHEAD, MEDUSA, REDRAFTER, engine_specs
from trtspec.checkpoints.model_config import ModelConfig
from trtspec.core.diagnostics import Diagnostic

GEMMA, PHI = ("Gemma2ForCausalLM", "Gemma3ForCausalLM"), ("Phi3ForCausalLM",)


def check_tree_mask_support(context: PlanContext) -> Iterator[Diagnostic]:
    """The layers of these models lack a parameter for the attention mask of drafts."""
    target = engine_specs(context)[0]
    if target.mode in (LOOKAHEAD, MEDUSA, REDRAFTER) and target.config.architecture in GEMMA + PHI:
        method, model = context.method_name, target.config.architecture
        message = f"{method} engines do not support {model}: its layers do not accept an attention mask for drafts"
        source = f"{GEMMA_MODEL if model in GEMMA else PHI_MODEL}, {DECODER}"
        hint = "method: draft_target or ngram"
        yield Diagnostic("speculation.method", "architecture", message, hint, source=source)


def check_window_rope_scaling(context: PlanContext) -> Iterator[Diagnostic]:
    """Engines scale both sets of rotary positions, but Gemma 3 scales only the set for layers without a window."""
    for spec in engine_specs(context):
        if spec.config.local_rotary_base and spec.config.rope_scaling:
            message = f"engines of {spec.config.architecture} also scale the rotary positions of sliding-window layers,"
            message += " so their output is wrong"
            hint, source = "use another backend, or a model without RoPE scaling, such as the 1B model", issue(3247)
            yield spec.diagnostic("model", "rope", message, hint, source=source)


def check_window_layers(context: PlanContext) -> Iterator[Diagnostic]:
    """Gemma 3's engines place layers without a window at a fixed distance."""
    for spec in engine_specs(context):
        config = spec.config
        if config.local_rotary_base and config.full_layers != _counted(config):
            message = f"engines of {config.architecture} place layers without a sliding window at a fixed distance,"
            message += " but this model has other ones"
            yield spec.diagnostic("model", "windows", message, "use another backend", source=GEMMA_MODEL)


def _counted(config: ModelConfig) -> tuple[int, ...]:
    """Return the layers at the distance that the first layer without a window determines."""
    distance = config.full_layers[0] + 1 if config.full_layers else config.num_layers + 1
    return tuple(range(distance - 1, config.num_layers, distance))


def check_head_norm_epsilon(context: PlanContext) -> Iterator[Diagnostic]:
    """Gemma's layers do not pass their epsilon to the norms of queries and keys."""
    for spec in engine_specs(context):
        epsilon = spec.config.norm_epsilon
        if spec.config.architecture in GEMMA and spec.config.qk_norm and epsilon != 1e-5:
            message = f"engines of {spec.config.architecture} normalize queries and keys with an epsilon of 1e-05, not"
            message += f" {epsilon:.0e}"
            yield spec.diagnostic("model", "epsilon", message, "verify the artifact", "warning", source=GEMMA_MODEL)


def check_gemma_embedding(context: PlanContext) -> Iterator[Diagnostic]:
    """Gemma's config divides the embedding over the ranks and ignores the checkpoint's setting."""
    for spec in engine_specs(context):
        if spec.config.architecture in GEMMA and spec.mapping.tensor > 1 and not spec.mapping.embedding:
            message = f"engines of {spec.config.architecture} divide the embedding over their ranks"
            yield spec.diagnostic("parallel.embedding", "parallel", message, "embedding: true", source=GEMMA_CONFIG)


def check_rowwise_extensions(context: PlanContext) -> Iterator[Diagnostic]:
    """Attention and MLP with row-wise scales lack parameters for the extensions of these models."""
    for spec in engine_specs(context):
        if spec.quant_format.weights == "fp8_rowwise" and spec.config.architecture in GEMMA + PHI:
            message = f"fp8_rowwise engines of {spec.config.architecture} omit its extensions of Llama's layers"
            yield spec.diagnostic("quantization.weights", "fp8", message, "weights: fp8", source=QUANTIZE)


def check_longrope_factor(context: PlanContext) -> Iterator[Diagnostic]:
    """Engines derive the factor of sines and cosines from the two lengths and ignore the model's."""
    for spec in engine_specs(context):
        scaling = spec.config.rope_scaling
        if scaling is None or scaling.kind != "longrope":
            continue
        ratio = spec.config.max_positions / scaling.original_max_position
        factor = sqrt(1 + log(ratio) / log(scaling.original_max_position)) if ratio > 1 else 1.0
        if not isclose(factor, scaling.attention_factor, rel_tol=1e-6):
            message = f"engines of {spec.config.architecture} derive an attention_factor of {factor:.4f} from their"
            message += f" lengths, but the model has {scaling.attention_factor:.4f}"
            yield spec.diagnostic("model", "rope", message, "use another backend", source=PHI_CONFIG)


def check_phi_stages(context: PlanContext) -> Iterator[Diagnostic]:
    """Every rank of Phi-3 and Phi-4 has the embedding and the head, and none passes on its hidden states."""
    for spec in engine_specs(context):
        if spec.config.architecture in PHI and spec.mapping.pipeline > 1:
            message = f"engines of {spec.config.architecture} do not support pipeline stages"
            hint = "set pipeline: 1, and use tensor: for more ranks"
            yield spec.diagnostic("parallel.pipeline", "parallel", message, hint, source=PHI_MODEL)


def check_phi_tensor_parallel(context: PlanContext) -> Iterator[Diagnostic]:
    """Upstream's converter does not divide Phi-3 and Phi-4."""
    for spec in engine_specs(context):
        if spec.config.architecture in PHI and spec.mapping.tensor > 1:
            message = f"upstream does not list tensor parallelism for {spec.config.architecture}"
            hint = "verify the artifact"
            yield spec.diagnostic("parallel.tensor", "parallel", message, hint, "warning", PHI_README)


def check_partial_rotary(context: PlanContext) -> Iterator[Diagnostic]:
    """Phi-4-mini rotates only a part of each head; upstream lists Phi-4 without that."""
    for spec in engine_specs(context):
        if spec.config.architecture in PHI and spec.config.rotary_share < 1:
            share = f"{spec.config.rotary_share:.0%} of each head"
            message = f"upstream does not list a {spec.config.architecture} that rotates {share}, as Phi-4-mini does"
            yield spec.diagnostic("model", "rope", message, "verify the artifact", "warning", source=PHI_README)
