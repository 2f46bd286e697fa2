# SPDX-License-Identifier: Apache-2.0
"""List the candidates to try, and build their artifacts.

Candidates are the recipe's speculation, methods without a draft, and the given drafts. A candidate's artifact is the
recipe with the candidate's speculation, for the engine in this process.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from trtspec.backends.base import Backend, in_process_backend
from trtspec.bench.profile.options import ProfileCandidate, ProfileRequest, ProgressUI
from trtspec.checkpoints.resolve import find_source
from trtspec.core.diagnostics import RecipeError
from trtspec.core.errors import TrtspecError
from trtspec.core.paths import cache_dir
from trtspec.methods.base import Method, find_method, methods
from trtspec.planning.init.inputs import open_checkpoint, propose_methods
from trtspec.planning.init.recipe_text import relative_model
from trtspec.planning.pipeline import open_store, plan_build, prepare_sources, run_build
from trtspec.recipe.load import LoadedRecipe, load_recipe
from trtspec.recipe.schema import ModelSource


@dataclass(frozen=True)
class CandidateSpec:
    """A candidate to build: a method, the recipe's draft section, and options.

    `draft_len` is the recipe's draft length, None for the method's default.
    """

    method: str
    source: dict[str, Any] | None
    options: dict[str, Any]
    draft_len: int | None = None

    @property
    def name(self) -> str:
        return f"{self.method} ({self.source['model']})" if self.source else self.method

    def section(self, max_draft_len: int) -> dict[str, Any]:
        """Return the recipe's `speculation` section to measure with.

        A chain has the maximum length, because its measurement covers all shorter ones. A tree keeps its depth up to
        that maximum, because a tree of another depth is a different tree.
        """
        section: dict[str, Any] = {"method": self.method, "options": self.options}
        method = find_method(self.method)
        if lens := method.draft_lens:
            longest = min(method.length_for(self.draft_len), max_draft_len) if self._is_tree(method) else max_draft_len
            section["draft_len"] = max(lens[0], min(lens[-1], longest))
        return section | ({"draft": self.source} if self.source else {})

    def _is_tree(self, method: Method) -> bool:
        shape = method.shape_for(method.parse(self.options), self.draft_len)
        return shape.max_tokens > shape.max_depth


def recipe_candidate(loaded: LoadedRecipe) -> CandidateSpec | None:
    """Return the recipe's own candidate, or None if its method is "none"."""
    own = loaded.recipe.speculation
    if own.method == "none":
        return None
    return CandidateSpec(own.method, _section(own.draft) if own.draft else None, own.options, own.draft_len)


def find_candidates(
    loaded: LoadedRecipe, asked: ProfileRequest, engine: Backend
) -> tuple[list[CandidateSpec], dict[str, str]]:
    """Return the candidates, and the reasons why others are skipped, by name.

    Candidates are the recipe's speculation, the selected methods (by default those without a draft), and the given
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
    """Return the reason why a candidate is skipped, in one sentence."""
    return error.diagnostics[0].message if isinstance(error, RecipeError) else error.message


def _draftless_methods(engine: Backend) -> list[str]:
    """Return the engine's methods that need neither a draft nor an option."""
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
    """Return the candidate for a draft with its recommended method."""
    draft, target = open_checkpoint(written), find_source(loaded.recipe.target)
    way = propose_methods(None, in_process_backend()[0], target, draft.source, None)[0]
    return CandidateSpec(way.method, _section(draft.asked), way.suggestion.options, way.suggestion.draft_len or None)


def _section(draft: ModelSource) -> dict[str, Any]:
    return draft.model_dump(exclude_defaults=True, mode="json")


@contextmanager
def temporary_workspace(command: str) -> Iterator[Path]:
    """Create a temporary directory for artifacts next to the store, to which they hard-link."""
    cache_dir().mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=f"{command}-", dir=cache_dir()) as folder:
        yield Path(folder)


def build(asked: ProfileRequest, wanted: CandidateSpec, engine: str, out: Path, screen: ProgressUI) -> ProfileCandidate:
    """Build the candidate's artifact in `out` and return the candidate."""
    section = wanted.section(asked.limits.max_draft_len)
    overrides = [*asked.overrides, f"engine.backend={engine}", f"speculation={json.dumps(section)}"]
    loaded = load_recipe(asked.recipe, overrides)
    with screen.building() as bars:
        prepare_sources(loaded, bars.preparing)
        build = plan_build(loaded, read_all=True, on_read=bars.reading)
        run_build(build, out, open_store(), bars)
    return make_candidate(asked, wanted, out)


def make_candidate(asked: ProfileRequest, wanted: CandidateSpec, root: Path) -> ProfileCandidate:
    """Return the candidate for an artifact in `root`, with paths relative to the recipe."""
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
