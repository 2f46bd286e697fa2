# SPDX-License-Identifier: Apache-2.0
"""What the torch engine says of a recipe: keys that are for engines of other kinds."""

from __future__ import annotations

from collections.abc import Iterator

from trtspec.backends.context import PlanContext
from trtspec.checkpoints.hub_metadata import bring_tokenizer
from trtspec.checkpoints.source import Source
from trtspec.checkpoints.token_bytes import Meaning, token_ids
from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.core.diagnostics import Diagnostic, Severity
from trtspec.core.errors import CheckpointError
from trtspec.methods.dflash.net import kind_of, special_keys


def check(context: PlanContext) -> Iterator[Diagnostic]:
    """Yield a warning for each key without effect here, and for lengths that change texts."""
    engine, serving = context.recipe.engine, context.recipe.serving
    for option in engine.extra:
        message = "an option of trtllm-build; the torch engine has no use for it"
        yield Diagnostic(f"engine.extra.{option}", "unused", message, severity="warning")
    for key in sorted(engine.build.model_fields_set):
        message = f"{key} is for trtllm-build; the torch engine has no use for it"
        yield Diagnostic(f"engine.build.{key}", "unused", message, severity="warning")
    yield from _about_longrope(context)
    yield from _about_block_nets(context)
    if context.translates:
        yield _about_vocabulary(context)
    if serving.fast_logits:
        message = "the torch engine hands no logits from GPU to GPU"
        yield Diagnostic("serving.fast_logits", "unused", message, severity="warning")


def _about_vocabulary(context: PlanContext) -> Diagnostic:
    """Return how much of the target's vocabulary a draft of another one can draft; an error where that is nothing."""
    said, hint = "draft and target have other tokenizers", "a draft of the target's own family is accepted more often"
    try:
        ours, theirs = (_meanings(context.sources[role]) for role in ("target", "draft"))
    except CheckpointError as error:
        return _of_draft(f"{said}, and in {error.where} {error.message}", error.hint)
    shared = len(ours.keys() & theirs.keys())
    if not shared:
        return _of_draft(f"{said} without a common token: nothing can be drafted", "choose another draft")
    said += (
        f": {shared:,} of the target's {len(ours):,} tokens ({shared / len(ours):.1%}) are the draft's too, and drafted"
    )
    return _of_draft(said, hint, "warning")


def _meanings(source: Source) -> dict[Meaning, int]:
    bring_tokenizer(source)
    return token_ids(Tokenizer(source.root))


def _of_draft(message: str, hint: str | None, severity: Severity = "error") -> Diagnostic:
    return Diagnostic("speculation.draft.model", "vocabulary", message, hint, severity)


def _about_block_nets(context: PlanContext) -> Iterator[Diagnostic]:
    """Yield an error for what changes a block net's computation and only other engines know."""
    if context.head and kind_of(context.head.source) and (keys := special_keys(context.head.source)):
        message = f"the torch engine does not compute what its config.json says: {', '.join(keys)}"
        yield Diagnostic("speculation.draft.model", "not-supported", message, "choose another engine.backend")


def _about_longrope(context: PlanContext) -> Iterator[Diagnostic]:
    """Yield a warning where short texts get the rotary factors of long ones."""
    longest = context.recipe.engine.max_seq_len
    for path, config in (("target", context.target_config), ("speculation.draft", context.draft_config)):
        scaling = config.rope_scaling if config else None
        if scaling and scaling.kind == "longrope" and longest > (most := scaling.original_max_position):
            message = f"texts beyond {most} tokens have LongRoPE's long factors, and an engine has one set for all:"
            message += f" with max_seq_len {longest} short texts have the long ones too"
            hint = f"engine.max_seq_len: {most}, where no text is longer"
            yield Diagnostic(f"{path}.model", "rope", message, hint, "warning")
