# SPDX-License-Identifier: Apache-2.0
"""Select what to measure: prompts and concurrencies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

from trtspec.bench.artifact import OpenArtifact, artifact_prompts
from trtspec.bench.profile.candidate import SampleTexts
from trtspec.bench.profile.options import ProfileRequest, SearchLimits
from trtspec.core.errors import TrtspecError
from trtspec.engine.generation.validation import check_request
from trtspec.engine.prompts.prompt import Prompt
from trtspec.recipe.schema import Recipe

BATCHES = (1, 2, 4, 8, 16, 32, 64)


def sample_prompts(asked: ProfileRequest, root: Path | None) -> list[Prompt]:
    """Return a random sample of the given prompts, by default the artifact's."""
    prompts = artifact_prompts(root, asked.prompts)
    return Random(asked.limits.seed).sample(prompts, min(asked.limits.samples, len(prompts)))


def filter_fitting(artifact: OpenArtifact, prompts: Sequence[Prompt], max_tokens: int) -> list[Prompt]:
    """Return the prompts that fit the engine's limits with `max_tokens` new tokens; raise an error if none fit."""
    fit, engine, why = [], artifact.engine, None
    for prompt in prompts:
        try:
            check_request(artifact.request(prompt.text, max_tokens), engine.settings.limits, engine.vocab_size, True)
            fit.append(prompt)
        except TrtspecError as error:
            why = error
    if why and not fit:
        raise why
    return fit


def choose_batches(recipe: Recipe, limits: SearchLimits) -> list[int]:
    """Return the concurrencies to measure."""
    most = max(limits.concurrency, recipe.engine.max_batch_size)
    return sorted({*(batch for batch in BATCHES if batch <= most), limits.concurrency})


def require_outputs(texts: SampleTexts) -> None:
    """Raise TrtspecError if the target generated no response of two tokens or more."""
    if not texts.said:
        raise TrtspecError("the target generates fewer than two tokens for every prompt", hint="use other --prompts")
