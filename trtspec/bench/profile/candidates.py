# SPDX-License-Identifier: Apache-2.0
"""Inputs of `profile` and `tune`: command options, prompts and texts to measure on, and candidates.

Candidates are the recipe's speculation, methods without a draft, and the given drafts. The artifact of a candidate is
built from the recipe with the candidate's `speculation` section, for the engine in this process.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from trtspec.backends.base import Backend, in_process_backend
from trtspec.bench.artifact import OpenArtifact, artifact_prompts
from trtspec.checkpoints.resolve import find_source
from trtspec.core.diagnostics import RecipeError
from trtspec.core.errors import TrtspecError
from trtspec.core.paths import cache_dir
from trtspec.engine.generation.request import check_request
from trtspec.engine.prompts.prompt import Prompt
from trtspec.methods.base import find_method, methods
from trtspec.planning.init.inputs import open_checkpoint, propose_methods
from trtspec.planning.init.recipe_text import relative_model
from trtspec.planning.pipeline import open_store, plan_build, prepare_sources, run_build
from trtspec.recipe.load import LoadedRecipe, load_recipe
from trtspec.recipe.schema import ModelSource, Recipe
from trtspec.store.artifact import Manifest, load_manifest
from trtspec.store.executor import Observer

if TYPE_CHECKING:
    from trtspec.bench.load.client import ServerAddress


OnProgress = Callable[[str, int, int], None]
BATCHES = (1, 2, 4, 8, 16, 32, 64)


class SampleText(NamedTuple):
    """The tokens of a prompt and of the target's greedy response, and the prompt's category."""

    prompt: tuple[int, ...]
    response: tuple[int, ...]
    kind: str


@dataclass(frozen=True)
class ProfileCandidate:
    """A method with its options, the recipe's draft section (None without a draft), and the artifact in `root`.

    `takes_draft_len` is True if the recipe sets the draft length, instead of the method's options. `options` and
    `draft_len` replace the settings that the artifact was built with; a `draft_len` of 0 keeps the artifact's.
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
        """Return a label of the draft length and the options that is unique among candidates of one artifact."""
        length = {"draft_len": self.draft_len} if self.draft_len else {}
        return ", ".join(f"{key} {_short(value)}" for key, value in (length | self.options).items()) or "defaults"

    @cached_property
    def manifest(self) -> Manifest:
        """Return the artifact's manifest with the candidate's options and draft length."""
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
    """Limits of `profile` and `tune`: numbers of prompts and tokens, maximum draft length, concurrency and seed."""

    samples: int
    max_tokens: int
    max_draft_len: int
    concurrency: int
    seed: int


@dataclass(frozen=True)
class ProfileRequest:
    """Options of the commands `profile` and `tune`."""

    recipe: Path
    overrides: list[str]
    prompts: Path | None
    drafts: list[str] | None
    methods: list[str] | None
    limits: SearchLimits


@dataclass(frozen=True)
class ServerSet:
    """The server to profile, and other servers of the same target."""

    served: ServerAddress
    baseline: ServerAddress | None  # without speculation, or None to disable drafting per request
    root: Path | None  # the artifact, or None if only an address is known
    others: Sequence[ServerAddress] = ()  # servers with other draft lengths


class BuildProgress(Observer, Protocol):
    """Progress display of a build, including downloads and hashing of its sources."""

    def preparing(self, what: str, done: int, total: int) -> None:
        """Show the number of downloaded bytes of source `what`."""

    def reading(self, done: int, total: int) -> None:
        """Show the number of hashed bytes of all sources."""


@dataclass(frozen=True)
class ProgressUI:
    """Factories of progress displays for builds and for counted work."""

    building: Callable[[], AbstractContextManager[BuildProgress]]
    counting: Callable[[], AbstractContextManager[OnProgress]]


def sample_prompts(asked: ProfileRequest, root: Path | None) -> list[Prompt]:
    """Return a random sample of the given prompts, or of the artifact's prompts."""
    prompts = artifact_prompts(root, asked.prompts)
    return Random(asked.limits.seed).sample(prompts, min(asked.limits.samples, len(prompts)))


def filter_fitting(artifact: OpenArtifact, prompts: Sequence[Prompt], max_tokens: int) -> list[Prompt]:
    """Return the prompts that fit the engine's limits with `max_tokens` new tokens; TrtspecError if none fits."""
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
    """Return the concurrencies to measure, in ascending order, up to the recipe's batch size or the requested one."""
    most = max(limits.concurrency, recipe.engine.max_batch_size)
    return sorted({*(batch for batch in BATCHES if batch <= most), limits.concurrency})


def require_outputs(texts: Sequence[SampleText]) -> None:
    if not texts:
        raise TrtspecError("the target generates fewer than two tokens for every prompt", hint="use other --prompts")


@dataclass(frozen=True)
class CandidateSpec:
    """A candidate to build: its method, the recipe's draft section, and the method's options.

    `draft_len` is the recipe's draft length, or None for the method's default.
    """

    method: str
    source: dict[str, Any] | None
    options: dict[str, Any]
    draft_len: int | None = None

    @property
    def name(self) -> str:
        return f"{self.method} ({self.source['model']})" if self.source else self.method

    def section(self, max_draft_len: int) -> dict[str, Any]:
        """Return the recipe's `speculation` section for the measurement.

        A chain gets the maximum draft length, because its measurement covers all shorter lengths. A tree keeps its own
        depth up to that maximum, because a tree of another depth has other nodes.
        """
        section: dict[str, Any] = {"method": self.method, "options": self.options}
        method = find_method(self.method)
        if lens := method.draft_lens:
            shape = method.shape_for(method.parse(self.options), self.draft_len)
            is_tree = shape.max_tokens > shape.max_depth
            longest = min(method.length_for(self.draft_len), max_draft_len) if is_tree else max_draft_len
            section["draft_len"] = max(lens[0], min(lens[-1], longest))
        return section | ({"draft": self.source} if self.source else {})


def recipe_candidate(loaded: LoadedRecipe) -> CandidateSpec | None:
    """Return the candidate for the recipe's own speculation, or None if its method is "none"."""
    own = loaded.recipe.speculation
    if own.method == "none":
        return None
    return CandidateSpec(own.method, _section(own.draft) if own.draft else None, own.options, own.draft_len)


def find_candidates(
    loaded: LoadedRecipe, asked: ProfileRequest, engine: Backend
) -> tuple[list[CandidateSpec], dict[str, str]]:
    """Return the candidates to measure, and the reasons for skipping others by name.

    Candidates are the recipe's speculation, the selected methods (by default all without a draft), and the given
    drafts. Raises TrtspecError for an unknown method.
    """
    own, left_out = recipe_candidate(loaded), dict[str, str]()
    found = [own] if own and (asked.methods is None or own.method in asked.methods) else []
    for name in asked.methods if asked.methods is not None else _draftless_methods(engine):
        if name in (own.method if own else "none", "none"):
            continue
        needs = find_method(name).drafts_with
        if needs == "nothing":
            found.append(CandidateSpec(name, None, {}))
        elif own and own.source:
            found.append(CandidateSpec(name, own.source, {}))
        else:
            left_out[name] = f"it requires a {needs}, which the recipe lacks; give one with --drafts"
    for written in asked.drafts or ():
        try:
            found.append(_draft_candidate(loaded, written))
        except TrtspecError as error:
            left_out[written] = skip_reason(error)
    return found, left_out


def skip_reason(error: TrtspecError) -> str:
    """Return the message of an error as the reason for skipping a candidate."""
    return error.diagnostics[0].message if isinstance(error, RecipeError) else error.message


def _draftless_methods(engine: Backend) -> list[str]:
    """Return the names of the engine's methods that require neither a draft nor options."""
    found = []
    for name in engine.methods():
        method = methods()[name]
        if name == "none" or method.drafts_with != "nothing":
            continue
        try:
            method.parse({})
        except TrtspecError:
            continue
        found.append(name)
    return found


def _draft_candidate(loaded: LoadedRecipe, written: str) -> CandidateSpec:
    """Return the candidate for a draft, with the method that suits the draft best."""
    draft, target = open_checkpoint(written), find_source(loaded.recipe.target)
    way = propose_methods(None, in_process_backend()[0], target, draft.source, None)[0]
    return CandidateSpec(way.method, _section(draft.asked), way.suggestion.options, way.suggestion.draft_len or None)


def _section(draft: ModelSource) -> dict[str, Any]:
    return draft.model_dump(exclude_defaults=True, mode="json")


@contextmanager
def temporary_workspace(command: str) -> Iterator[Path]:
    """Create a temporary directory for artifacts on the store's file system, so that files can be hard-linked."""
    cache_dir().mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f"{command}-", dir=cache_dir()) as folder:
        yield Path(folder)


def build(asked: ProfileRequest, wanted: CandidateSpec, engine: str, out: Path, screen: ProgressUI) -> ProfileCandidate:
    """Build a candidate's artifact in `out`, and return the candidate."""
    section = wanted.section(asked.limits.max_draft_len)
    overrides = [*asked.overrides, f"engine.backend={engine}", f"speculation={json.dumps(section)}"]
    loaded = load_recipe(asked.recipe, overrides)
    with screen.building() as bars:
        prepare_sources(loaded, bars.preparing)
        build = plan_build(loaded, read_all=True, on_read=bars.reading)
        run_build(build, out, open_store(), bars)
    return make_candidate(asked, wanted, out)


def make_candidate(asked: ProfileRequest, wanted: CandidateSpec, root: Path) -> ProfileCandidate:
    """Return the candidate for the artifact in `root`; paths in its draft section are relative to the recipe."""
    source = wanted.source and _written(wanted.source, asked.recipe.absolute().parent)
    takes_draft_len = "draft_len" in wanted.section(asked.limits.max_draft_len)
    return ProfileCandidate(wanted.method, source, wanted.options, takes_draft_len, root)


def _written(section: dict[str, Any], base: Path) -> dict[str, Any]:
    """Return a recipe section with absolute paths rewritten relative to `base`."""
    return {
        key: _written(value, base)
        if isinstance(value, dict)
        else relative_model(value, base)
        if isinstance(value, str) and os.path.isabs(value)
        else value
        for key, value in section.items()
    }
