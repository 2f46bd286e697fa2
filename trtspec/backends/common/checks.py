# SPDX-License-Identifier: Apache-2.0
"""Checks of recipe keys that only some backends support, and checks that several backends share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from trtspec.backends.base import Backend, backends
from trtspec.backends.context import PlanContext, recipe_models
from trtspec.checkpoints.prequantized import source_format
from trtspec.checkpoints.source import Source
from trtspec.core.diagnostics import Diagnostic
from trtspec.methods.base import Method, Options
from trtspec.methods.draft_target import DraftTargetOptions
from trtspec.methods.ngram import NgramOptions
from trtspec.recipe.schema import Recipe, Speculation

METHOD, OPTIONS, DRAFT = "speculation.method", "speculation.options", "speculation.draft.model"
SCHEDULE, VERIFY = "speculation.schedule", "speculation.verify"
STRUCTURED_OUTPUT = "serving.structured_output"


def check_features(
    speculation: Speculation, method: Method, options: Options, backend: Backend
) -> Iterator[Diagnostic]:
    """Yield problems for keys of `speculation` that the backend does not support or that do not apply to the method."""
    for knob in speculation.knobs:
        path = f"speculation.{knob}"
        if method.shape_for(options, None).max_tokens == 0:
            message = f"{speculation.method} drafts nothing, so {knob} is ignored"
            yield Diagnostic(path, "unused", message, f"remove {knob}, or set another method")
        elif knob not in backend.knobs:
            message = f"{knob} is not supported by this backend ({backend.summary})"
            taking = {name: each for name, each in backends().items() if knob in each.knobs}
            names = [name for name, each in taking.items() if speculation.method in each.methods()]
            yield Diagnostic(path, "not-supported", message, _alternative(f"remove {knob}", names))
        elif knob == "schedule":
            yield from _check_schedule(speculation, method)
        elif knob in ("verify", "confidence"):
            yield from _check_chain(knob, speculation, method, options)


def check_device_and_dtype(recipe: Recipe, backend: Backend) -> Iterator[Diagnostic]:
    """Yield an error for each value of device, dtype and `serving.defaults` that the backend does not support."""
    draft = recipe.speculation.draft
    for path, value, attribute in (
        ("engine.device", recipe.engine.device, "devices"),
        ("serving.defaults", recipe.serving.defaults, "defaults"),
        ("target.dtype", recipe.target.dtype, "dtypes"),
        ("speculation.draft.dtype", draft.dtype if draft else "", "dtypes"),
    ):
        if value and value not in getattr(backend, attribute):
            names = [name for name, each in backends().items() if value in getattr(each, attribute)]
            message = f"{value} is not supported by this backend ({backend.summary})"
            yield Diagnostic(path, "not-supported", message, _alternative("remove it", names))


def check_warmup(recipe: Recipe, backend: Backend) -> Iterator[Diagnostic]:
    """Yield an error if the recipe requests a warm-up and the backend does not support it."""
    if recipe.serving.warmup and not backend.warms:
        message = f"warmup is not supported by this backend ({backend.summary}), whose engine has its own warm-up"
        hint = _alternative("remove it", [name for name, each in backends().items() if each.warms])
        hint += "; deploy --wait-for-warmup waits for a first text"
        yield Diagnostic("serving.warmup", "not-supported", message, hint)


def check_structured_output(recipe: Recipe, backend: Backend) -> Iterator[Diagnostic]:
    """Yield an error if the recipe requires structured output and the backend does not support it."""
    if recipe.serving.structured_output and backend.structured_output == "never":
        message = f"structured output is not supported by this backend ({backend.summary})"
        names = [name for name, each in backends().items() if each.structured_output != "never"]
        yield Diagnostic(STRUCTURED_OUTPUT, "not-supported", message, _alternative("remove it", names))


def _alternative(remove: str, names: list[str]) -> str:
    """Return a hint: remove a key, or use one of the backends that support it."""
    return f"{remove}, or set engine.backend: {' or '.join(names)}" if names else remove


def _check_schedule(speculation: Speculation, method: Method) -> Iterator[Diagnostic]:
    """Yield an error unless the schedule begins with draft_len, for which engines reserve memory."""
    if not method.draft_lens:
        message = f"{speculation.method} does not use draft_len, so a schedule cannot shorten it"
        yield Diagnostic(SCHEDULE, "not-supported", message, "remove schedule")
        return
    first = speculation.schedule[0].draft_len
    draft_len = method.length_for(speculation.draft_len)
    if first != draft_len:
        message = f"it begins with {first} draft tokens, but speculation.draft_len is {draft_len}"
        yield Diagnostic(SCHEDULE, "out-of-range", message, f"set speculation.draft_len: {first}" if first else None)


def _check_chain(knob: str, speculation: Speculation, method: Method, options: Options) -> Iterator[Diagnostic]:
    shape = method.shape_for(options, speculation.draft_len)
    what, hint = {
        "verify": ("block verification", "set verify: standard"),
        "confidence": ("a length by confidence", "remove confidence"),
    }[knob]
    if shape.max_tokens > shape.max_depth:
        message = f"{what} supports chains only, and this method drafts a tree"
        yield Diagnostic(f"speculation.{knob}", "not-supported", message, hint)
    elif knob == "confidence" and not method.has_confidence:
        message = f"{speculation.method} does not provide probabilities to estimate the confidence of a draft"
        yield Diagnostic(f"speculation.{knob}", "not-supported", message, hint)


def unused(path: str, message: str, source: str = "") -> Diagnostic:
    """Return a warning for a recipe key without effect."""
    return Diagnostic(path, "unused", message, severity="warning", source=source)


def check_extra(context: PlanContext, engine: str) -> Iterator[Diagnostic]:
    """Yield a warning for each option of trtllm-build in the recipe; `engine` is the name of the engine in use."""
    for option in context.recipe.engine.extra:
        yield unused(f"engine.extra.{option}", f"an option of trtllm-build, which {engine} does not use")


def check_unconverted(
    context: PlanContext, engine: str, *, draft_tokens: int | None = None, maps_vocabularies: bool = False
) -> Iterator[Diagnostic]:
    """Yield problems of a recipe for an engine that runs unconverted checkpoints, target and draft on the same GPUs.

    `draft_tokens` are the draft tokens that a step verifies per request; the default is the size of the draft shape.
    With `maps_vocabularies`, the engine supports a draft model with another vocabulary.
    """
    yield from _check_placement(context, maps_vocabularies)
    yield from _check_num_tokens(context, context.draft_shape.max_tokens if draft_tokens is None else draft_tokens)
    yield from check_extra(context, engine)


def check_acceptance(context: PlanContext, message: str, source: str) -> Iterator[Diagnostic]:
    """Yield an error with the given message if the recipe requests typical acceptance."""
    if context.options.acceptance != "exact":
        yield Diagnostic(f"{OPTIONS}.lossy", "lossy", message, "remove lossy", source=source)


def check_full_drafts(context: PlanContext, engine: str, source: str) -> Iterator[Diagnostic]:
    """Yield an error for the option stop_below, for engines that always draft the full length."""
    if isinstance(context.options, DraftTargetOptions) and context.options.stop_below:
        message = f"{engine} always drafts draft_len tokens"
        yield Diagnostic(f"{OPTIONS}.stop_below", "not-supported", message, "remove it", source=source)


def check_any_match(context: PlanContext, engine: str, source: str) -> Iterator[Diagnostic]:
    """Yield a warning for the option min_match of prompt lookup, for engines that draft after any match."""
    if isinstance(context.options, NgramOptions) and "min_match" in context.recipe.speculation.options:
        message = f"{engine} does not support a minimum match length: it drafts after a single repeated token"
        yield unused(f"{OPTIONS}.min_match", message, source)


def check_confidence_table(context: PlanContext, engine: str) -> Iterator[Diagnostic]:
    """Yield an error for DSpark's table of step times, for engines other than the LLM API."""
    if getattr(context.options, "confidence_cost_table", None):
        message = f"{engine} does not choose the verified length from a table of step times"
        yield Diagnostic(
            f"{OPTIONS}.confidence_cost_table", "not-supported", message, "remove it: the option is for the LLM API"
        )


def check_draft_parallel(context: PlanContext, source: str) -> Iterator[Diagnostic]:
    """Yield an error if the draft's parallelism differs from the target's, for engines that use one for both."""
    draft, ranks = context.recipe.speculation.draft, context.recipe.target.parallel.ranks
    if draft and "parallel" in draft.model_fields_set and draft.parallel.ranks != ranks:
        message = f"the draft uses the target's parallelism, {ranks} GPUs"
        yield Diagnostic("speculation.draft.parallel", "parallel", message, "remove it", source=source)


def check_online(context: PlanContext, engine: str, online: Iterable[str]) -> Iterable[Diagnostic]:
    """Yield errors for requested weight formats that the source does not have and the engine cannot produce on load.

    `online` are the formats to which the engine named `engine` quantizes 16-bit sources on load.
    """
    for role, path, asked in recipe_models(context):
        found, wanted = source_format(context.sources[role]).weights, asked.quantization.weights
        if wanted in ("none", found):
            continue
        if found != "none":
            message = f"{wanted} weights are requested, but the {role} is {found}"
            yield Diagnostic(f"{path}.quantization.weights", "quantization", message, "remove it")
        elif wanted not in online:
            message = f"{engine} {context.version} does not quantize to {wanted} on load"
            hint = f"use a quantized checkpoint, or choose {', '.join(online)}"
            yield Diagnostic(f"{path}.quantization.weights", "quantization", message, hint)
        elif set(asked.quantization.exclude) != {"lm_head"}:
            message = f"{engine} quantizes every layer except the head on load and ignores exclude"
            yield Diagnostic(f"{path}.quantization.exclude", "unused", message, severity="warning")


def source_architecture(source: Source) -> str:
    """Return the first entry of `architectures` in a source's config.json, or ""."""
    named = source.config.get("architectures")
    return str(named[0]) if isinstance(named, list) and named else ""


def _check_placement(context: PlanContext, maps_vocabularies: bool) -> Iterable[Diagnostic]:
    """Yield errors for GPU placements and draft vocabularies that engines without conversion do not support."""
    recipe = context.recipe
    ranks, placement = recipe.target.parallel.ranks, recipe.serving.placement
    if placement and len(placement.target) != ranks:
        message = f"the target is divided over {ranks} GPUs but placed on {len(placement.target)}"
        yield Diagnostic("serving.placement.target", "placement", message, f"list {ranks}")
    if placement and placement.draft and placement.draft != placement.target:
        message = "this engine loads the draft on the target's GPUs"
        yield Diagnostic("serving.placement.draft", "placement", message, "remove it")
    ours, theirs = context.target_config, context.draft_config
    if ours and theirs and ours.vocab_size != theirs.vocab_size and not maps_vocabularies:
        message = (
            f"the draft has {theirs.vocab_size} vocabulary entries, the target {ours.vocab_size}: this "
            "engine runs both unchanged and cannot pad the smaller one"
        )
        hint = "use a backend that converts checkpoints and pads the smaller one"
        yield Diagnostic("speculation.draft.model", "vocabulary", message, hint)


def _check_num_tokens(context: PlanContext, draft_tokens: int) -> Iterable[Diagnostic]:
    """Yield an error if max_num_tokens is too small to verify the draft tokens of a full batch."""
    engine, tokens = context.recipe.engine, draft_tokens + 1
    least = engine.max_batch_size * tokens
    if engine.max_num_tokens and engine.max_num_tokens < least:
        message = f"max_num_tokens {engine.max_num_tokens} is less than max_batch_size {engine.max_batch_size} times"
        message += f" {tokens} token{'s' * (tokens > 1)} to verify"
        yield Diagnostic("engine.max_num_tokens", "out-of-range", message, f"at least {least}")
