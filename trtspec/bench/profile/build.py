# SPDX-License-Identifier: Apache-2.0
"""Build a candidate: an artifact of the recipe with the candidate's speculation, for the engine in this process."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from trtspec.bench.profile.candidate import ProfileCandidate
from trtspec.bench.profile.candidates import CandidateSpec
from trtspec.bench.profile.options import ProfileRequest, ProgressUI
from trtspec.core.paths import cache_dir
from trtspec.planning.init.recipe_text import relative_model
from trtspec.planning.pipeline import open_store, plan_build, run_build
from trtspec.planning.prebuild import prepare_sources
from trtspec.recipe.load import load_recipe


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
        build = plan_build(loaded, on_read=bars.reading)
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
