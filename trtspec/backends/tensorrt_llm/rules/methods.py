# SPDX-License-Identifier: Apache-2.0
"""Rules for speculation methods: the models, formats and options that their engines support."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from trtspec.backends.common import checks as shared
from trtspec.backends.context import PlanContext
from trtspec.backends.tensorrt_llm.rules.sources import (
    BUILDER,
    DECODER,
    DRAFT_README,
    EAGLE_README,
    LOOKAHEAD_LAYER,
    LOOKAHEAD_README,
    MEDUSA_LIMITS,
    MEDUSA_MODEL,
    MEDUSA_README,
    REDRAFTER_MODEL,
    REDRAFTER_README,
    TRITON,
    issue,
)
from trtspec.backends.tensorrt_llm.specs import (
    EAGLE,
    EXTERNAL,
    LOOKAHEAD,
    MEDUSA,
    REDRAFTER,
    EngineSpec,
    engine_specs,
    is_greedy_only,
    speculation_mode,
    uses_draft_logits,
)
from trtspec.core.diagnostics import Diagnostic
from trtspec.methods.eagle import EagleOptions
from trtspec.methods.lookahead import LookaheadOptions

METHOD = "speculation.method"

MOST_EAGLE_ROWS = 512

# The models in upstream's examples, by mode.
EXAMPLES = {
    MEDUSA: (("LlamaForCausalLM", "MixtralForCausalLM", "Qwen2ForCausalLM"), f"{MEDUSA_README}, {issue(2678)}"),
    REDRAFTER: (("LlamaForCausalLM", "Qwen2ForCausalLM"), REDRAFTER_README),
}

GREEDY_SOURCES = {
    MEDUSA: MEDUSA_LIMITS,
    EAGLE: f"{EAGLE_README}, {TRITON}",
    LOOKAHEAD: LOOKAHEAD_LAYER,
    REDRAFTER: REDRAFTER_README,
}

READMES = {EXTERNAL: DRAFT_README, LOOKAHEAD: LOOKAHEAD_README}

# The modes whose engines do not support pipeline stages.
ONE_STAGE = {
    EAGLE: EAGLE_README,
    MEDUSA: f"{MEDUSA_MODEL}, {DECODER}",
    REDRAFTER: f"{REDRAFTER_MODEL}, {DECODER}",
}


def check_acceptance(context: PlanContext) -> Iterator[Diagnostic]:
    """The Triton backend does not pass on the thresholds of typical acceptance."""
    if speculation_mode(context):
        yield from shared.check_acceptance(context, "the Triton backend does not support typical acceptance", TRITON)


def check_eagle_architecture(context: PlanContext) -> Iterator[Diagnostic]:
    """EAGLE engines use a Llama class."""
    target = _target(context, EAGLE)
    if target and target.config.architecture != "LlamaForCausalLM":
        message = f"EAGLE engines support Llama only, not {target.config.architecture}"
        hint = "method: draft_target or ngram; or eagle3 on another backend"
        yield Diagnostic(METHOD, "architecture", message, hint, source=f"{issue(2511)}, {issue(10396)}")


def check_eagle_quantization(context: PlanContext) -> Iterator[Diagnostic]:
    """EAGLE engines are in 16 bits."""
    target = _target(context, EAGLE)
    for key in ("weights", "kv_cache"):
        if target and getattr(target.quant_format, key) != "none":
            message = "EAGLE engines require float16 or bfloat16: FP8 is not supported"
            source = f"{EAGLE_README}, {issue(3207)}"
            yield Diagnostic(f"target.quantization.{key}", "fp8", message, f"{key}: none", source=source)


def check_pipeline_stages(context: PlanContext) -> Iterator[Diagnostic]:
    """The head reads the outputs of the last stage, but upstream creates and requests it on every stage."""
    target = engine_specs(context)[0]
    if target.mode in ONE_STAGE and target.mapping.pipeline > 1:
        message = f"{context.method_name} engines do not support pipeline stages"
        hint, source = "use parallel.tensor", ONE_STAGE[target.mode]
        yield Diagnostic("target.parallel.pipeline", "parallel", message, hint, source=source)


def check_no_schedule(context: PlanContext) -> Iterator[Diagnostic]:
    """The draft length of an engine that drafts inside is fixed when it is built."""
    if context.recipe.speculation.schedule and (mode := speculation_mode(context)) != EXTERNAL:
        message = f"the draft length of a {context.method_name} engine is fixed when it is built"
        hint = "remove schedule, or set method: draft_target or ngram"
        yield Diagnostic("speculation.schedule", "not-supported", message, hint, source=READMES.get(mode, TRITON))


def check_eagle_batch_size(context: PlanContext) -> Iterator[Diagnostic]:
    """The builder asserts this limit."""
    target = _target(context, EAGLE)
    if target and target.max_batch_size > MOST_EAGLE_ROWS:
        message = f"EAGLE engines support at most {MOST_EAGLE_ROWS} requests per step, not {target.max_batch_size}"
        yield Diagnostic("engine.max_batch_size", "out-of-range", message, f"at most {MOST_EAGLE_ROWS}", source=BUILDER)


def check_eagle_tree(context: PlanContext) -> Iterator[Diagnostic]:
    """The Triton backend does not pass on the executor's option for dynamic trees."""
    if isinstance(context.options, EagleOptions) and context.options.dynamic and speculation_mode(context):
        message = "Triton cannot serve a dynamic tree (EAGLE-2): its backend passes on only eagle_choices"
        yield Diagnostic("speculation.options.dynamic", "not-supported", message, "remove dynamic", source=TRITON)


def check_greedy_only(context: PlanContext) -> Iterator[Diagnostic]:
    """Some engines always take the most probable token; the served model rejects sampled requests for them."""
    if is_greedy_only(context):
        message = f"{context.method_name} engines always decode greedily, whatever the request's sampling"
        hint = "sampled requests are rejected; draft_target supports them"
        yield Diagnostic(METHOD, "greedy", message, hint, "warning", GREEDY_SOURCES[speculation_mode(context)])


def check_upstream_examples(context: PlanContext) -> Iterator[Diagnostic]:
    """Other models of the same classes may work, but upstream does not show them."""
    target = engine_specs(context)[0]
    known, source = EXAMPLES.get(target.mode, ((), ""))
    if known and target.config.architecture not in known:
        names = ", ".join(known)
        message = f"upstream has {context.method_name} examples for {names}, not {target.config.architecture}"
        yield Diagnostic(METHOD, "architecture", message, "verify the artifact", "warning", source)


def check_documented_stages(context: PlanContext) -> Iterator[Diagnostic]:
    """Upstream's support lists contain only tensor parallelism."""
    target = engine_specs(context)[0]
    if target.mode in READMES and target.mapping.pipeline > 1:
        message = f"upstream lists only tensor parallelism for {target.mode}"
        hint = "use parallel.tensor if the GPUs allow it"
        yield Diagnostic("target.parallel.pipeline", "parallel", message, hint, "warning", READMES[target.mode])


def check_lookahead_sizes(context: PlanContext) -> Iterator[Diagnostic]:
    """(1, 1, 0) disables lookahead, but an engine of that mode needs space for drafts."""
    options = context.options
    if not isinstance(options, LookaheadOptions) or not speculation_mode(context):
        return
    sizes = (options.window, options.ngram, options.verification)
    if context.draft_shape.max_tokens == 0:
        message = f"window, ngram and verification {sizes} draft nothing, but a lookahead engine needs space for drafts"
        source = f"{LOOKAHEAD_README}, triton-inference-server/tensorrtllm_backend#710"
        yield Diagnostic(
            "speculation.options", "out-of-range", message, "at least (2, 2, 1), or method: none", source=source
        )
    elif any(size < least for size, least in zip(sizes, (2, 2, 1), strict=True)):
        message = f"window, ngram and verification {sizes} are below (2, 2, 1), the minimum for useful lookahead"
        yield Diagnostic("speculation.options", "out-of-range", message, None, "warning", LOOKAHEAD_README)


def check_logits_shape(context: PlanContext) -> Iterator[Diagnostic]:
    """Logits have the width of the vocabulary padded to the ranks; the target requires its own width."""
    specs = engine_specs(context)
    widths = [ceil(spec.config.vocab_size / spec.mapping.tensor) * spec.mapping.tensor for spec in specs]
    if uses_draft_logits(context) and len(set(widths)) > 1:
        message = f"with padding for their ranks, the target has {widths[0]} logits and the draft {widths[1]}"
        hint = "equal parallel.tensor, or use_draft_logits: false"
        path = "speculation.options.use_draft_logits"
        yield Diagnostic(path, "vocabulary", message, hint, source=f"{DRAFT_README}, {issue(2789)}")


def _target(context: PlanContext, mode: str) -> EngineSpec | None:
    target = engine_specs(context)[0]
    return target if target.mode == mode else None
