# SPDX-License-Identifier: Apache-2.0
"""Check a recipe against the torch engine."""

from __future__ import annotations

from collections.abc import Iterator

from trtspec.backends.common.checks import DRAFT, check_extra, unused
from trtspec.backends.context import PlanContext
from trtspec.checkpoints.previews import fetch_tokenizer
from trtspec.checkpoints.source import Source
from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.checkpoints.translation import Meaning, token_ids
from trtspec.core.diagnostics import Diagnostic, Severity
from trtspec.core.errors import CheckpointError
from trtspec.methods.dflash import detect_kind, special_keys


def check(context: PlanContext) -> Iterator[Diagnostic]:
    """Yield warnings for keys without effect and for lengths that change texts, and errors of the drafter."""
    engine, serving = context.recipe.engine, context.recipe.serving
    yield from check_extra(context, "the torch engine")
    for key in sorted(engine.build.model_fields_set):
        message = f"{key} applies to trtllm-build, which the torch engine does not use"
        yield unused(f"engine.build.{key}", message)
    yield from _check_longrope(context)
    yield from _check_block_nets(context)
    if context.translates:
        yield _check_vocabulary(context)
    if serving.fast_logits:
        yield unused("serving.fast_logits", "the torch engine does not transfer logits between GPUs")


def _check_vocabulary(context: PlanContext) -> Diagnostic:
    """Return how much of the target's vocabulary the draft shares: a warning, or an error without overlap."""
    message, hint = (
        "draft and target have different tokenizers",
        "a draft of the target's family is accepted more often",
    )
    try:
        ours, theirs = (_meanings(context.sources[role]) for role in ("target", "draft"))
    except CheckpointError as error:
        return _draft_diagnostic(f"{message}, and in {error.where} {error.message}", error.hint)
    shared = len(ours.keys() & theirs.keys())
    if not shared:
        return _draft_diagnostic(f"{message} without a common token: nothing can be drafted", "choose another draft")
    share = f"{shared:,} of the target's {len(ours):,} tokens ({shared / len(ours):.1%})"
    message += f": the draft can draft only {share}"
    return _draft_diagnostic(message, hint, "warning")


def _meanings(source: Source) -> dict[Meaning, int]:
    fetch_tokenizer(source)
    return token_ids(Tokenizer(source.root))


def _draft_diagnostic(message: str, hint: str | None, severity: Severity = "error") -> Diagnostic:
    return Diagnostic(DRAFT, "vocabulary", message, hint, severity)


def _check_block_nets(context: PlanContext) -> Iterator[Diagnostic]:
    """Yield an error for settings of a block drafter that the torch engine does not support."""
    if context.head and detect_kind(context.head.source) and (keys := special_keys(context.head.source)):
        message = f"the torch engine does not support these keys of the draft's config.json: {', '.join(keys)}"
        yield Diagnostic(DRAFT, "not-supported", message, "choose another engine.backend")


def _check_longrope(context: PlanContext) -> Iterator[Diagnostic]:
    """Yield a warning if short texts get LongRoPE's factors for long texts."""
    longest = context.recipe.engine.max_seq_len
    for path, config in (("target", context.target_config), ("speculation.draft", context.draft_config)):
        scaling = config.rope_scaling if config else None
        if scaling and scaling.kind == "longrope" and longest > (most := scaling.original_max_position):
            message = (
                f"texts beyond {most} tokens need LongRoPE's long factors, and an engine has one set for all texts:"
            )
            message += f" with max_seq_len {longest} short texts use the long factors too"
            hint = f"engine.max_seq_len: {most}, if no text is longer"
            yield Diagnostic(f"{path}.model", "rope", message, hint, "warning")
