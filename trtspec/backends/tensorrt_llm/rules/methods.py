# SPDX-License-Identifier: Apache-2.0
"""Rules of the ways to speculate: which models, formats and options their engines take."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from trtspec.backends.base import Case, Objection
from trtspec.backends.tensorrt_llm.rules.sources import (
    BUILDER,
    DECODER,
    DRAFT_README,
    EAGLE_README,
    LOOKAHEAD_LAYER,
    LOOKAHEAD_README,
    MEDUSA_MODEL,
    MEDUSA_README,
    REDRAFTER_MODEL,
    REDRAFTER_README,
    TRITON,
    issue,
)
from trtspec.backends.tensorrt_llm.sampling import is_greedy_only
from trtspec.backends.tensorrt_llm.specs import (
    EAGLE,
    EXTERNAL,
    LOOKAHEAD,
    MEDUSA,
    REDRAFTER,
    EngineSpec,
    engine_specs,
    uses_draft_logits,
)
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
    MEDUSA: MEDUSA_README,
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


def acceptance_is_exact(case: Case) -> Iterator[Objection]:
    """The Triton backend has no parameter for the thresholds of typical acceptance."""
    if case.method.engine_mode and case.options.acceptance != "exact":
        message = "typical acceptance cannot be asked of a served engine: the Triton backend has no parameter for it"
        yield Objection("speculation.options.lossy", "lossy", message, "remove lossy", source=TRITON)


def eagle_is_for_llama(case: Case) -> Iterator[Objection]:
    """The class of EAGLE's engines is a Llama."""
    target = _target(case, EAGLE)
    if target and target.config.architecture != "LlamaForCausalLM":
        message = f"EAGLE engines are built for Llama alone, not for {target.config.architecture}"
        hint = "method: draft_target or ngram; or eagle3 on backend llmapi"
        yield Objection(METHOD, "architecture", message, hint, source=f"{issue(2511)}, {issue(10396)}")


def eagle_is_not_quantized(case: Case) -> Iterator[Objection]:
    """EAGLE's engines are in 16 bits."""
    target = _target(case, EAGLE)
    for key in ("weights", "kv_cache"):
        if target and getattr(target.storage, key) != "none":
            message = "EAGLE engines are in float16 or bfloat16: FP8 is not supported"
            source = f"{EAGLE_README}, {issue(3207)}"
            yield Objection(f"target.quantization.{key}", "fp8", message, f"{key}: none", source=source)


def drafts_inside_have_one_stage(case: Case) -> Iterator[Objection]:
    """What drafts reads the last stage's outputs, and upstream makes it and asks for them on every stage."""
    target = engine_specs(case)[0]
    if target.mode in ONE_STAGE and target.mapping.pipeline > 1:
        message = f"{case.recipe.speculation.method} engines have no pipeline stages"
        hint, source = "use parallel.tensor", ONE_STAGE[target.mode]
        yield Objection("target.parallel.pipeline", "parallel", message, hint, source=source)


def eagle_has_few_rows(case: Case) -> Iterator[Objection]:
    """The builder asserts it."""
    target = _target(case, EAGLE)
    if target and target.max_batch_size > MOST_EAGLE_ROWS:
        message = f"EAGLE engines take at most {MOST_EAGLE_ROWS} requests a step, not {target.max_batch_size}"
        yield Objection("engine.max_batch_size", "out-of-range", message, f"at most {MOST_EAGLE_ROWS}", source=BUILDER)


def eagle_has_a_static_tree(case: Case) -> Iterator[Objection]:
    """A dynamic tree is an option of the executor that the Triton backend does not pass on."""
    if isinstance(case.options, EagleOptions) and case.options.dynamic and case.method.engine_mode:
        message = "a dynamic tree (EAGLE-2) cannot be served by Triton: its backend passes on eagle_choices alone"
        yield Objection("speculation.options.dynamic", "not-supported", message, "remove dynamic", source=TRITON)


def requests_are_greedy(case: Case) -> Iterator[Objection]:
    """Some engines take the most probable token whatever a request says; on them the served model refuses to sample."""
    if is_greedy_only(case):
        message = f"{case.recipe.speculation.method} engines take the most probable tokens, whatever a request asks"
        hint = "requests that sample are refused; draft_target serves them"
        yield Objection(METHOD, "greedy", message, hint, "warning", GREEDY_SOURCES[case.method.engine_mode])


def examples_exist(case: Case) -> Iterator[Objection]:
    """Other models of the same classes may work, and nobody shows it."""
    target = engine_specs(case)[0]
    known, source = EXAMPLES.get(target.mode, ((), ""))
    if known and target.config.architecture not in known:
        names = ", ".join(known)
        message = f"upstream shows {case.recipe.speculation.method} for {names}, not for {target.config.architecture}"
        yield Objection(METHOD, "architecture", message, "verify the artifact", "warning", source)


def stages_are_not_documented(case: Case) -> Iterator[Objection]:
    """The lists of what is supported name tensor parallelism alone."""
    target = engine_specs(case)[0]
    if target.mode in READMES and target.mapping.pipeline > 1:
        message = f"upstream lists tensor parallelism alone for {target.mode}"
        hint = "use parallel.tensor where the GPUs allow it"
        yield Objection("target.parallel.pipeline", "parallel", message, hint, "warning", READMES[target.mode])


def lookahead_drafts(case: Case) -> Iterator[Objection]:
    """(1, 1, 0) turns lookahead off, and an engine of that mode has to have room for drafts."""
    options = case.options
    if not isinstance(options, LookaheadOptions) or not case.method.engine_mode:
        return
    sizes = (options.window, options.ngram, options.verification)
    if case.extent.nodes == 0:
        message = f"window, ngram and verification {sizes} draft nothing, and a lookahead engine needs room for drafts"
        source = f"{LOOKAHEAD_README}, triton-inference-server/tensorrtllm_backend#710"
        yield Objection(
            "speculation.options", "out-of-range", message, "at least (2, 2, 1), or method: none", source=source
        )
    elif any(size < least for size, least in zip(sizes, (2, 2, 1), strict=True)):
        message = f"window, ngram and verification {sizes} are below (2, 2, 1), from which lookahead means something"
        yield Objection("speculation.options", "out-of-range", message, None, "warning", LOOKAHEAD_README)


def logits_have_one_shape(case: Case) -> Iterator[Objection]:
    """Logits are as wide as the vocabulary padded to the ranks, and the target takes those of its own width."""
    specs = engine_specs(case)
    widths = [ceil(spec.config.vocab_size / spec.mapping.tensor) * spec.mapping.tensor for spec in specs]
    if uses_draft_logits(case) and len(set(widths)) > 1:
        message = f"the target's logits are {widths[0]} wide, the draft's {widths[1]}, padded for their ranks"
        hint = "equal parallel.tensor, or use_draft_logits: false"
        path = "speculation.options.use_draft_logits"
        yield Objection(path, "vocabulary", message, hint, source=f"{DRAFT_README}, {issue(2789)}")


def _target(case: Case, mode: str) -> EngineSpec | None:
    target = engine_specs(case)[0]
    return target if target.mode == mode else None


RULES = (
    acceptance_is_exact,
    eagle_is_for_llama,
    eagle_is_not_quantized,
    drafts_inside_have_one_stage,
    eagle_has_few_rows,
    eagle_has_a_static_tree,
    requests_are_greedy,
    examples_exist,
    stages_are_not_documented,
    lookahead_drafts,
    logits_have_one_shape,
)
