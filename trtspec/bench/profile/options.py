# SPDX-License-Identifier: Apache-2.0
"""Inputs of `profile` and `tune`: the command's options, the candidates, and the prompts and texts to measure on."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from trtspec.bench.artifact import OpenArtifact, artifact_prompts
from trtspec.core.errors import TrtspecError
from trtspec.engine.generation.request import check_request
from trtspec.engine.prompts.prompt import Prompt
from trtspec.recipe.schema import Recipe
from trtspec.store.artifact import Manifest, load_manifest
from trtspec.store.executor import Observer

if TYPE_CHECKING:
    from trtspec.bench.load.discovery import ServerAddress


OnProgress = Callable[[str, int, int], None]
BATCHES = (1, 2, 4, 8, 16, 32, 64)


class SampleText(NamedTuple):
    """A prompt, the target's greedy response of at least two tokens, and the prompt's category."""

    prompt: tuple[int, ...]
    response: tuple[int, ...]
    kind: str


@dataclass(frozen=True)
class ProfileCandidate:
    """A candidate: a method with options, the recipe's draft section (None without a draft), and the built artifact.

    `takes_draft_len` is whether the recipe sets the draft length, instead of the method's options. Options and
    `draft_len` replace those the artifact was built with; a `draft_len` of 0 keeps the artifact's.
    """

    method: str
    source: dict[str, Any] | None
    options: dict[str, Any]
    takes_draft_len: bool
    root: Path
    draft_len: int = 0

    @property
    def draft(self) -> str | None:
        return self.source["model"] if self.source else None

    @property
    def name(self) -> str:
        return f"{self.method} ({self.draft})" if self.draft else self.method

    @property
    def settings(self) -> str:
        """Return a label of draft length and options that is unique among candidates of one artifact."""
        length = {"draft_len": self.draft_len} if self.draft_len else {}
        return ", ".join(f"{key} {_short(value)}" for key, value in (length | self.options).items()) or "defaults"

    @cached_property
    def manifest(self) -> Manifest:
        """Return the artifact's manifest with the candidate's options."""
        found = load_manifest(self.root)
        changes: dict[str, Any] = {"options": self.options} | ({"draft_len": self.draft_len} if self.draft_len else {})
        speculation = found.recipe.speculation.model_copy(update=changes)
        return found.model_copy(update={"recipe": found.recipe.model_copy(update={"speculation": speculation})})


def _short(value: Any) -> str:
    return (
        f"({len(value)} entries)" if isinstance(value, list) else value if isinstance(value, str) else json.dumps(value)
    )


@dataclass(frozen=True)
class SearchLimits:
    """Limits of the search; see the command's options."""

    samples: int
    max_tokens: int
    max_draft_len: int
    concurrency: int
    seed: int


@dataclass(frozen=True)
class ProfileRequest:
    """The command's options."""

    recipe: Path
    overrides: list[str]
    prompts: Path | None
    drafts: list[str] | None
    methods: list[str] | None
    limits: SearchLimits


@dataclass(frozen=True)
class ServerSet:
    """The server to profile, one without speculation (None to switch drafting off), and its artifact.

    `root` is None if only an address is known; `others` serve the same target with other draft lengths.
    """

    served: ServerAddress
    baseline: ServerAddress | None
    root: Path | None
    others: Sequence[ServerAddress] = ()


class BuildProgress(Observer, Protocol):
    """Progress of a build, including its sources' downloads and digests."""

    def preparing(self, what: str, done: int, total: int) -> None:
        """Report downloaded bytes of a source."""

    def reading(self, done: int, total: int) -> None:
        """Report hashed bytes of the sources."""


@dataclass(frozen=True)
class ProgressUI:
    """Progress displays for builds and counted work."""

    building: Callable[[], AbstractContextManager[BuildProgress]]
    counting: Callable[[], AbstractContextManager[OnProgress]]


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
    most = max(limits.concurrency, recipe.engine.max_batch_size)
    return sorted({*(batch for batch in BATCHES if batch <= most), limits.concurrency})


def require_outputs(texts: Sequence[SampleText]) -> None:
    """Raise TrtspecError if the target generated no response of two tokens or more."""
    if not texts:
        raise TrtspecError("the target generates fewer than two tokens for every prompt", hint="use other --prompts")
