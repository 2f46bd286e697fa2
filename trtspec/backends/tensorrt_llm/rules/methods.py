# SPDX-License-Identifier: Apache-2.0
"""Rules of the ways to speculate: which models, formats and options their engines take."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from trtspec.backends.context import PlanContext
from trtspec.backends.tensorrt_llm.modes import EAGLE, EXTERNAL, LOOKAHEAD, MEDUSA, REDRAFTER, mode_of
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
from trtspec.backends.tensorrt_llm.sampling import is_greedy_only
from trtspec.backends.tensorrt_llm.specs import EngineSpec, engine_specs, uses_draft_logits
from trtspec.core.diagnostics import Diagnostic
from trtspec.methods.eagle import EagleOptions
from trtspec.methods.lookahead import LookaheadOptions

METHOD = "speculation.method"

MOST_EAGLE_ROWS = 512

# The models that upstream has examples of, by mode.
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

# The modes whose engines cannot be divided into stages.
ONE_STAGE = {
    EAGLE: EAGLE_README,
    MEDUSA: f"{MEDUSA_MODEL}, {DECODER}",
    REDRAFTER: f"{REDRAFTER_MODEL}, {DECODER}",
}


def acceptance_is_exact(context: PlanContext) -> Iterator[Diagnostic]:
    """The Triton backend has no parameter for the thresholds of typical acceptance."""
    if mode_of(context) and context.options.acceptance != "exact":
        message = "typical acceptance cannot be asked of a served engine: the Triton backend has no parameter for it"
        yield Diagnostic("speculation.options.lossy", "lossy", message, "remove lossy", source=TRITON)


def eagle_is_for_llama(context: PlanContext) -> Iterator[Diagnostic]:
    """The class of EAGLE's engines is a Llama."""
    target = _target(context, EAGLE)
    if target and target.config.architecture != "LlamaForCausalLM":
        message = f"EAGLE engines are built for Llama alone, not for {target.config.architecture}"
        hint = "method: draft_target or ngram; or eagle3 on another backend"
        yield Diagnostic(METHOD, "architecture", message, hint, source=f"{issue(2511)}, {issue(10396)}")


def eagle_is_not_quantized(context: PlanContext) -> Iterator[Diagnostic]:
    """EAGLE's engines are in 16 bits."""
    target = _target(context, EAGLE)
    for key in ("weights", "kv_cache"):
        if target and getattr(target.quant_format, key) != "none":
            message = "EAGLE engines are in float16 or bfloat16: FP8 is not supported"
            source = f"{EAGLE_README}, {issue(3207)}"
            yield Diagnostic(f"target.quantization.{key}", "fp8", message, f"{key}: none", source=source)


def drafts_inside_have_one_stage(context: PlanContext) -> Iterator[Diagnostic]:
    """What drafts reads the last stage's outputs, and upstream makes it and asks for them on every stage."""
    target = engine_specs(context)[0]
    if target.mode in ONE_STAGE and target.mapping.pipeline > 1:
        message = f"{context.recipe.speculation.method} engines have no pipeline stages"
        hint, source = "use parallel.tensor", ONE_STAGE[target.mode]
        yield Diagnostic("target.parallel.pipeline", "parallel", message, hint, source=source)


def drafts_inside_have_no_schedule(context: PlanContext) -> Iterator[Diagnostic]:
    """How much an engine drafts by itself was built into it."""
    if context.recipe.speculation.schedule and (mode := mode_of(context)) != EXTERNAL:
        message = f"what a {context.recipe.speculation.method} engine drafts was decided when it was built"
        hint = "remove schedule, or set method: draft_target or ngram"
        yield Diagnostic("speculation.schedule", "not-supported", message, hint, source=READMES.get(mode, TRITON))


def eagle_has_few_rows(context: PlanContext) -> Iterator[Diagnostic]:
    """The builder asserts it."""
    target = _target(context, EAGLE)
    if target and target.max_batch_size > MOST_EAGLE_ROWS:
        message = f"EAGLE engines take at most {MOST_EAGLE_ROWS} requests a step, not {target.max_batch_size}"
        yield Diagnostic("engine.max_batch_size", "out-of-range", message, f"at most {MOST_EAGLE_ROWS}", source=BUILDER)


def eagle_has_a_static_tree(context: PlanContext) -> Iterator[Diagnostic]:
    """A dynamic tree is an option of the executor that the Triton backend does not pass on."""
    if isinstance(context.options, EagleOptions) and context.options.dynamic and mode_of(context):
        message = "a dynamic tree (EAGLE-2) cannot be served by Triton: its backend passes on eagle_choices alone"
        yield Diagnostic("speculation.options.dynamic", "not-supported", message, "remove dynamic", source=TRITON)


def requests_are_greedy(context: PlanContext) -> Iterator[Diagnostic]:
    """Some engines take the most probable token whatever a request says; on them the served model refuses to sample."""
    if is_greedy_only(context):
        message = f"{context.recipe.speculation.method} engines take the most probable tokens, whatever a request asks"
        hint = "requests that sample are refused; draft_target serves them"
        yield Diagnostic(METHOD, "greedy", message, hint, "warning", GREEDY_SOURCES[mode_of(context)])


def examples_exist(context: PlanContext) -> Iterator[Diagnostic]:
    """Other models of the same classes may work, and nobody shows it."""
    target = engine_specs(context)[0]
    known, source = EXAMPLES.get(target.mode, ((), ""))
    if known and target.config.architecture not in known:
        names = ", ".join(known)
        message = (
            f"upstream shows {context.recipe.speculation.method} for {names}, not for {target.config.architecture}"
        )
        yield Diagnostic(METHOD, "architecture", message, "verify the artifact", "warning", source)


def stages_are_not_documented(context: PlanContext) -> Iterator[Diagnostic]:
    """The lists of what is supported name tensor parallelism alone."""
    target = engine_specs(context)[0]
    if target.mode in READMES and target.mapping.pipeline > 1:
        message = f"upstream lists tensor parallelism alone for {target.mode}"
        hint = "use parallel.tensor where the GPUs allow it"
        yield Diagnostic("target.parallel.pipeline", "parallel", message, hint, "warning", READMES[target.mode])


def lookahead_drafts(context: PlanContext) -> Iterator[Diagnostic]:
    """(1, 1, 0) turns lookahead off, and an engine of that mode has to have room for drafts."""
    options = context.options
    if not isinstance(options, LookaheadOptions) or not mode_of(context):
        return
    sizes = (options.window, options.ngram, options.verification)
    if context.draft_shape.max_tokens == 0:
        message = f"window, ngram and verification {sizes} draft nothing, and a lookahead engine needs room for drafts"
        source = f"{LOOKAHEAD_README}, triton-inference-server/tensorrtllm_backend#710"
        yield Diagnostic(
            "speculation.options", "out-of-range", message, "at least (2, 2, 1), or method: none", source=source
        )
    elif any(size < least for size, least in zip(sizes, (2, 2, 1), strict=True)):
        message = f"window, ngram and verification {sizes} are below (2, 2, 1), from which lookahead means something"
        yield Diagnostic("speculation.options", "out-of-range", message, None, "warning", LOOKAHEAD_README)


def logits_have_one_shape(context: PlanContext) -> Iterator[Diagnostic]:
    """Logits are as wide as the vocabulary padded to the ranks, and the target takes those of its own width."""
    specs = engine_specs(context)
    widths = [ceil(spec.config.vocab_size / spec.mapping.tensor) * spec.mapping.tensor for spec in specs]
    if uses_draft_logits(context) and len(set(widths)) > 1:
        message = f"the target's logits are {widths[0]} wide, the draft's {widths[1]}, padded for their ranks"
        hint = "equal parallel.tensor, or use_draft_logits: false"
        path = "speculation.options.use_draft_logits"
        yield Diagnostic(path, "vocabulary", message, hint, source=f"{DRAFT_README}, {issue(2789)}")


def _target(context: PlanContext, mode: str) -> EngineSpec | None:
    target = engine_specs(context)[0]
    return target if target.mode == mode else None


RULES = (
    acceptance_is_exact,
    eagle_is_for_llama,
    eagle_is_not_quantized,
    drafts_inside_have_one_stage,
    drafts_inside_have_no_schedule,
    eagle_has_few_rows,
    eagle_has_a_static_tree,
    requests_are_greedy,
    examples_exist,
    stages_are_not_documented,
    lookahead_drafts,
    logits_have_one_shape,
)
