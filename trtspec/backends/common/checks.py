# SPDX-License-Identifier: Apache-2.0
"""Checks that several backends share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from trtspec.backends.context import PlanContext, recipe_models
from trtspec.checkpoints.prequantized import source_format
from trtspec.core.diagnostics import Diagnostic
from trtspec.methods.draft_target import DraftTargetOptions
from trtspec.methods.ngram import NgramOptions

METHOD, OPTIONS, DRAFT = "speculation.method", "speculation.options", "speculation.draft.model"
SCHEDULE, VERIFY = "speculation.schedule", "speculation.verify"


def unused(path: str, message: str, source: str = "") -> Diagnostic:
    """Return the warning of a key that has no effect."""
    return Diagnostic(path, "unused", message, severity="warning", source=source)


def check_extra(context: PlanContext, engine: str) -> Iterator[Diagnostic]:
    """Yield a warning for each option of trtllm-build, which other engines do not use."""
    for option in context.recipe.engine.extra:
        yield unused(f"engine.extra.{option}", f"an option of trtllm-build, which {engine} does not use")


def check_unconverted(
    context: PlanContext, engine: str, *, draft_tokens: int | None = None, maps_vocabularies: bool = False
) -> Iterator[Diagnostic]:
    """Yield the problems with an engine that runs unconverted checkpoints, target and draft on the same GPUs.

    `draft_tokens` are the tokens that a step verifies for each request, by default the draft shape's. With
    `maps_vocabularies` the engine supports a draft model with another vocabulary.
    """
    yield from _check_placement(context, maps_vocabularies)
    yield from _check_num_tokens(context, context.draft_shape.max_tokens if draft_tokens is None else draft_tokens)
    yield from check_extra(context, engine)


def check_acceptance(context: PlanContext, message: str, source: str) -> Iterator[Diagnostic]:
    """Yield an error with this message for typical acceptance, which the engine does not support."""
    if context.options.acceptance != "exact":
        yield Diagnostic(f"{OPTIONS}.lossy", "lossy", message, "remove lossy", source=source)


def check_full_drafts(context: PlanContext, engine: str, source: str) -> Iterator[Diagnostic]:
    """Yield an error for drafts that end early, on engines that always draft the same number of tokens."""
    if isinstance(context.options, DraftTargetOptions) and context.options.stop_below:
        message = f"{engine} always drafts draft_len tokens"
        yield Diagnostic(f"{OPTIONS}.stop_below", "not-supported", message, "remove it", source=source)


def check_any_match(context: PlanContext, engine: str, source: str) -> Iterator[Diagnostic]:
    """Yield a warning for a minimum match of prompt lookup, on engines that draft after any match."""
    if isinstance(context.options, NgramOptions) and "min_match" in context.recipe.speculation.options:
        message = f"{engine} does not support a minimum match length: it drafts after a single repeated token"
        yield unused(f"{OPTIONS}.min_match", message, source)


def check_draft_parallel(context: PlanContext, source: str) -> Iterator[Diagnostic]:
    """Yield an error for another parallelism of the draft than the target's, on engines that use the target's."""
    draft, ranks = context.recipe.speculation.draft, context.recipe.target.parallel.ranks
    if draft and "parallel" in draft.model_fields_set and draft.parallel.ranks != ranks:
        message = f"the draft uses the target's parallelism, {ranks} GPUs"
        yield Diagnostic("speculation.draft.parallel", "parallel", message, "remove it", source=source)


def check_online(context: PlanContext, engine: str, online: Iterable[str]) -> Iterable[Diagnostic]:
    """Yield an error if the recipe requests a format that the source lacks and the engine cannot quantize to on load.

    `engine` is its name, and `online` are the formats to which it quantizes 16-bit sources on load.
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


def _check_placement(context: PlanContext, maps_vocabularies: bool) -> Iterable[Diagnostic]:
    """Yield placements and vocabularies that the engine does not support: target and draft share the same GPUs."""
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
    """Yield an error if a step cannot verify the draft tokens of a full batch."""
    engine, tokens = context.recipe.engine, draft_tokens + 1
    least = engine.max_batch_size * tokens
    if engine.max_num_tokens and engine.max_num_tokens < least:
        message = f"max_num_tokens {engine.max_num_tokens} is less than max_batch_size {engine.max_batch_size} times"
        message += f" {tokens} token{'s' * (tokens > 1)} to verify"
        yield Diagnostic("engine.max_num_tokens", "out-of-range", message, f"at least {least}")
