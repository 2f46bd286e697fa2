# SPDX-License-Identifier: Apache-2.0
"""Rules for speculation methods and model families that TensorRT-LLM's engines do not support, omit or change."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, isclose, log, sqrt

from trtspec.backends.common import checks as shared
from trtspec.backends.context import PlanContext
from trtspec.backends.tensorrt_llm import specs
from trtspec.backends.tensorrt_llm.rules import sources
from trtspec.backends.tensorrt_llm.specs import engine_specs, speculation_mode
from trtspec.checkpoints.model_config import ModelConfig
from trtspec.core.diagnostics import Diagnostic

METHOD, VERIFY = "speculation.method", "verify the artifact"

MOST_EAGLE_ROWS = 512
GEMMA, PHI = ("Gemma2ForCausalLM", "Gemma3ForCausalLM"), ("Phi3ForCausalLM",)
GRANITE = "GraniteForCausalLM"  # a Llama class upstream, whose multipliers other engines may omit

# The models in upstream's examples, by mode.
EXAMPLES = {
    specs.MEDUSA: (
        ("LlamaForCausalLM", "MixtralForCausalLM", "Qwen2ForCausalLM"),
        f"{sources.MEDUSA_README}, {sources.issue(2678)}",
    ),
    specs.REDRAFTER: (("LlamaForCausalLM", "Qwen2ForCausalLM"), sources.REDRAFTER_README),
}

GREEDY_SOURCES = {
    specs.MEDUSA: sources.MEDUSA_LIMITS,
    specs.EAGLE: f"{sources.EAGLE_README}, {sources.TRITON}",
    specs.LOOKAHEAD: sources.LOOKAHEAD_LAYER,
    specs.REDRAFTER: sources.REDRAFTER_README,
}

READMES = {specs.EXTERNAL: sources.DRAFT_README, specs.LOOKAHEAD: sources.LOOKAHEAD_README}

# The modes whose engines do not support pipeline stages.
ONE_STAGE = {
    specs.EAGLE: sources.EAGLE_README,
    specs.MEDUSA: f"{sources.MEDUSA_MODEL}, {sources.DECODER}",
    specs.REDRAFTER: f"{sources.REDRAFTER_MODEL}, {sources.DECODER}",
}


def check_acceptance(context: PlanContext) -> Iterator[Diagnostic]:
    """Yield an error for typical acceptance, whose thresholds the Triton backend does not pass to the engine."""
    if speculation_mode(context):
        message = "the Triton backend does not support typical acceptance"
        yield from shared.check_acceptance(context, message, sources.TRITON)


def check_eagle(context: PlanContext) -> Iterator[Diagnostic]:
    """Yield errors for EAGLE engines that are not a 16-bit Llama class or that exceed the builder's batch limit."""
    target = engine_specs(context)[0]
    if target.mode != specs.EAGLE:
        return
    if target.config.architecture != "LlamaForCausalLM":
        message = f"EAGLE engines support Llama only, not {target.config.architecture}"
        hint = "method: draft_target or ngram; or eagle3 on another backend"
        source = f"{sources.issue(2511)}, {sources.issue(10396)}"
        yield Diagnostic(METHOD, "architecture", message, hint, source=source)
    for key in ("weights", "kv_cache"):
        if getattr(target.quant_format, key) != "none":
            message = "EAGLE engines require float16 or bfloat16: FP8 is not supported"
            source = f"{sources.EAGLE_README}, {sources.issue(3207)}"
            yield Diagnostic(f"target.quantization.{key}", "fp8", message, f"{key}: none", source=source)
    if target.max_batch_size > MOST_EAGLE_ROWS:
        message = f"EAGLE engines support at most {MOST_EAGLE_ROWS} requests per step, not {target.max_batch_size}"
        hint = f"at most {MOST_EAGLE_ROWS}"
        yield Diagnostic("engine.max_batch_size", "out-of-range", message, hint, source=sources.BUILDER)


def check_pipeline_stages(context: PlanContext) -> Iterator[Diagnostic]:
    """Yield a problem for speculation with pipeline stages.

    Draft heads read the last stage's output, but upstream creates and requires them on each stage. For other modes,
    upstream's documentation lists only tensor parallelism.
    """
    target, path = engine_specs(context)[0], "target.parallel.pipeline"
    if target.mapping.pipeline == 1:
        return
    if target.mode in ONE_STAGE:
        message = f"{context.method_name} engines do not support pipeline stages"
        yield Diagnostic(path, "parallel", message, "use parallel.tensor", source=ONE_STAGE[target.mode])
    elif target.mode in READMES:
        message = f"upstream lists only tensor parallelism for {target.mode}"
        hint = "use parallel.tensor if the GPUs allow it"
        yield Diagnostic(path, "parallel", message, hint, "warning", READMES[target.mode])


def check_no_schedule(context: PlanContext) -> Iterator[Diagnostic]:
    """Yield an error for a schedule with a method that drafts inside the engine, whose draft length is fixed."""
    if context.recipe.speculation.schedule and (mode := speculation_mode(context)) != specs.EXTERNAL:
        message = f"the draft length of a {context.method_name} engine is fixed when it is built"
        hint, source = "remove schedule, or set method: draft_target or ngram", READMES.get(mode, sources.TRITON)
        yield Diagnostic("speculation.schedule", "not-supported", message, hint, source=source)


def check_method(context: PlanContext) -> Iterator[Diagnostic]:
    """Further problems of a single method are found by its folder, `methods/NAME/tensorrt_llm.py`."""
    if method := specs.engine_methods().get(context.method_name):
        yield from method.check(context)


def check_greedy_only(context: PlanContext) -> Iterator[Diagnostic]:
    """Yield a warning for engines that always decode greedily; the served model rejects sampled requests for them."""
    if specs.is_greedy_only(context):
        message = f"{context.method_name} engines always decode greedily, whatever the request's sampling"
        hint = "sampled requests are rejected; draft_target supports them"
        yield Diagnostic(METHOD, "greedy", message, hint, "warning", GREEDY_SOURCES[speculation_mode(context)])


def check_upstream_examples(context: PlanContext) -> Iterator[Diagnostic]:
    """Yield a warning for a model class that is not in upstream's examples for the method."""
    target = engine_specs(context)[0]
    known, source = EXAMPLES.get(target.mode, ((), ""))
    if known and target.config.architecture not in known:
        names = ", ".join(known)
        message = f"upstream has {context.method_name} examples for {names}, not {target.config.architecture}"
        yield Diagnostic(METHOD, "architecture", message, VERIFY, "warning", source)


def check_logits_shape(context: PlanContext) -> Iterator[Diagnostic]:
    """Yield an error if the logits of target and draft have different widths after padding to their ranks."""
    engines = engine_specs(context)
    widths = [ceil(spec.config.vocab_size / spec.mapping.tensor) * spec.mapping.tensor for spec in engines]
    if specs.uses_draft_logits(context) and len(set(widths)) > 1:
        message = f"with padding for their ranks, the target has {widths[0]} logits and the draft {widths[1]}"
        hint = "equal parallel.tensor, or use_draft_logits: false"
        path = "speculation.options.use_draft_logits"
        yield Diagnostic(path, "vocabulary", message, hint, source=f"{sources.DRAFT_README}, {sources.issue(2789)}")


def check_tree_mask_support(context: PlanContext) -> Iterator[Diagnostic]:
    """Yield an error for models whose layers lack a parameter for the attention mask of drafts."""
    target = engine_specs(context)[0]
    if target.mode in specs.MASKED_MODES and target.config.architecture in GEMMA + PHI:
        method, model = context.method_name, target.config.architecture
        message = f"{method} engines do not support {model}: its layers do not accept an attention mask for drafts"
        source = f"{sources.GEMMA_MODEL if model in GEMMA else sources.PHI_MODEL}, {sources.DECODER}"
        hint = "method: draft_target or ngram"
        yield Diagnostic("speculation.method", "architecture", message, hint, source=source)


def check_gemma(context: PlanContext) -> Iterator[Diagnostic]:
    """Yield problems for Gemma models with RoPE scaling, layer patterns or epsilons that engines do not support."""
    for spec in engine_specs(context):
        config, name = spec.config, f"engines of {spec.config.architecture}"
        if config.local_rotary_base and config.rope_scaling:  # Gemma 3 scales only layers without a window
            message = f"{name} also scale the rotary positions of sliding-window layers, so their output is wrong"
            hint = "use another backend, or a model without RoPE scaling, such as the 1B model"
            yield spec.diagnostic("model", "rope", message, hint, source=sources.issue(3247))
        if config.local_rotary_base and config.full_layers != _counted(config):
            message = f"{name} place layers without a sliding window at a fixed distance, but this model has other ones"
            yield spec.diagnostic("model", "windows", message, "use another backend", source=sources.GEMMA_MODEL)
        if config.architecture not in GEMMA:
            continue
        if config.qk_norm and config.norm_epsilon != 1e-5:
            message = f"{name} normalize queries and keys with an epsilon of 1e-05, not {config.norm_epsilon:.0e}"
            yield spec.diagnostic("model", "epsilon", message, VERIFY, "warning", source=sources.GEMMA_MODEL)
        if spec.mapping.tensor > 1 and not spec.mapping.embedding:
            message, key = f"{name} divide the embedding over their ranks", "parallel.embedding"
            yield spec.diagnostic(key, "parallel", message, "embedding: true", source=sources.GEMMA_CONFIG)


def _counted(config: ModelConfig) -> tuple[int, ...]:
    """Return the layers that engines leave without a window: equally spaced, at the first one's distance."""
    distance = config.full_layers[0] + 1 if config.full_layers else config.num_layers + 1
    return tuple(range(distance - 1, config.num_layers, distance))


def check_rowwise_extensions(context: PlanContext) -> Iterator[Diagnostic]:
    """Yield errors for row-wise FP8 weights of Gemma and Phi, whose extensions of Llama's layers would be omitted."""
    for spec in engine_specs(context):
        if spec.quant_format.weights == "fp8_rowwise" and spec.config.architecture in GEMMA + PHI:
            message = f"fp8_rowwise engines of {spec.config.architecture} omit its extensions of Llama's layers"
            yield spec.diagnostic("quantization.weights", "fp8", message, "weights: fp8", source=sources.QUANTIZE)


def check_granite(context: PlanContext) -> Iterator[Diagnostic]:
    """Yield warnings for Granite engines with a method or a format that may omit Granite's multipliers."""
    for spec in engine_specs(context):
        if spec.config.architecture != GRANITE:
            continue
        message = f"engines of {GRANITE} have not been compared with upstream with "
        if spec.mode in (specs.MEDUSA, specs.LOOKAHEAD):
            what = f"{context.method_name}, which may omit its multipliers"
            yield Diagnostic(METHOD, "architecture", message + what, VERIFY, "warning", sources.MODELS)
        if spec.quant_format.weights == "fp8_rowwise":
            what = "fp8_rowwise weights, whose layers may omit its multipliers"
            yield spec.diagnostic("quantization.weights", "fp8", message + what, VERIFY, "warning", sources.QUANTIZE)


def check_longrope_factor(context: PlanContext) -> Iterator[Diagnostic]:
    """Yield an error if a model's LongRoPE attention factor differs from the one that engines compute."""
    for spec in engine_specs(context):
        scaling = spec.config.rope_scaling
        if scaling is None or scaling.kind != "longrope":
            continue
        ratio = spec.config.max_positions / scaling.original_max_position
        factor = sqrt(1 + log(ratio) / log(scaling.original_max_position)) if ratio > 1 else 1.0
        if not isclose(factor, scaling.attention_factor, rel_tol=1e-6):
            message = f"engines of {spec.config.architecture} derive an attention_factor of {factor:.4f} from their"
            message += f" lengths, but the model has {scaling.attention_factor:.4f}"
            yield spec.diagnostic("model", "rope", message, "use another backend", source=sources.PHI_CONFIG)


def check_phi(context: PlanContext) -> Iterator[Diagnostic]:
    """Yield problems for Phi models with parallelism or rotary settings that upstream does not support or list."""
    for spec in engine_specs(context):
        config = spec.config
        if config.architecture not in PHI:
            continue
        if spec.mapping.pipeline > 1:  # no rank passes on its hidden states
            message = f"engines of {config.architecture} do not support pipeline stages"
            hint = "set pipeline: 1, and use tensor: for more ranks"
            yield spec.diagnostic("parallel.pipeline", "parallel", message, hint, source=sources.PHI_MODEL)
        if spec.mapping.tensor > 1:
            message = f"upstream does not list tensor parallelism for {config.architecture}"
            yield spec.diagnostic("parallel.tensor", "parallel", message, VERIFY, "warning", sources.PHI_README)
        if config.rotary_share < 1:
            share = f"{config.rotary_share:.0%} of each head"
            message = f"upstream does not list a {config.architecture} that rotates {share}, as Phi-4-mini does"
            yield spec.diagnostic("model", "rope", message, VERIFY, "warning", source=sources.PHI_README)
