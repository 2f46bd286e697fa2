# SPDX-License-Identifier: Apache-2.0
"""On what is measured: the prompts that are drawn, what the target said to them, and how many requests run at once."""

from __future__ import annotations

from pathlib import Path
from random import Random

from trtspec.errors import TrtspecError
from trtspec.measure.artifact import artifact_prompts
from trtspec.measure.profile.candidate import Texts
from trtspec.profiling.asked import Asked, Limits
from trtspec.prompts.prompt import Prompt
from trtspec.recipe.schema import Recipe

BATCHES = (1, 4, 16, 64)


def drawn(asked: Asked, root: Path) -> list[Prompt]:
    """Return the prompts that were asked for, or the artifact's own, as many as are wanted."""
    prompts = artifact_prompts(root, asked.prompts)
    return Random(asked.limits.seed).sample(prompts, min(asked.limits.samples, len(prompts)))


def batches_of(recipe: Recipe, limits: Limits) -> list[int]:
    """Return how many requests at once are measured."""
    most = max(limits.concurrency, recipe.engine.max_batch_size)
    return sorted({*(batch for batch in BATCHES if batch <= most), limits.concurrency})


def check_said(texts: Texts) -> None:
    """Raise TrtspecError where the target said nothing that could be drafted."""
    if not texts.said:
        raise TrtspecError("the target answers no prompt with two tokens", hint="name other --prompts")
