# SPDX-License-Identifier: Apache-2.0
"""What the embedded engine has against a recipe: keys for engines of other kinds, and lengths that change texts."""

from __future__ import annotations

from collections.abc import Iterator

from trtspec.engines.base import Case, Objection


def objections(case: Case) -> Iterator[Objection]:
    """Yield a warning for each key that has no effect here, and for what has another one than it seems."""
    engine, serving = case.recipe.engine, case.recipe.serving
    for option in engine.extra:
        message = "an option of trtllm-build; the embedded engine has no use for it"
        yield Objection(f"engine.extra.{option}", "unused", message, severity="warning")
    for key in sorted(engine.build.model_fields_set):
        message = f"{key} is for trtllm-build; the embedded engine has no use for it"
        yield Objection(f"engine.build.{key}", "unused", message, severity="warning")
    yield from _about_longrope(case)
    if serving.fast_logits:
        message = "the embedded engine hands no logits from GPU to GPU"
        yield Objection("serving.fast_logits", "unused", message, severity="warning")


def _about_longrope(case: Case) -> Iterator[Objection]:
    """Yield a warning where short texts get the rotary factors of long ones."""
    longest = case.recipe.engine.max_seq_len
    for path, config in (("target", case.target), ("speculation.draft", case.draft)):
        scaling = config.rope_scaling if config else None
        if scaling and scaling.kind == "longrope" and longest > (most := scaling.original_max_position):
            message = f"texts beyond {most} tokens have LongRoPE's long factors, and an engine has one set for all:"
            message += f" with max_seq_len {longest} short texts have the long ones too"
            hint = f"engine.max_seq_len: {most}, where no text is longer"
            yield Objection(f"{path}.model", "rope", message, hint, severity="warning")
