# SPDX-License-Identifier: Apache-2.0
"""Read the checkpoints of a recipe, from local files or from metadata."""

from __future__ import annotations

from dataclasses import dataclass

from trtspec.backends.base import unconverted_hint
from trtspec.checkpoints.memory_profile import read_memory_profile
from trtspec.checkpoints.resolve import locate_source, preview_source
from trtspec.checkpoints.source import NotPreparedError, Source, load_source
from trtspec.checkpoints.source_model import SourceModel, read_model
from trtspec.core.errors import CheckpointError, UnsupportedArchitecture, UnsupportedModel
from trtspec.methods.source_head import SourceHead
from trtspec.planning.check.collector import Findings
from trtspec.planning.check.selection import Selection
from trtspec.recipe.schema import ModelSource

TARGET, DRAFT = "target.model", "speculation.draft.model"  # recipe keys of the checkpoints


@dataclass(frozen=True)
class CheckedModel:
    """A checkpoint, read as far as possible: as a model of a known family, or as a draft head.

    Tokens of a draft model with `has_other_vocabulary` must be translated.
    """

    source: Source | None = None
    model: SourceModel | None = None
    head: SourceHead | None = None
    has_other_vocabulary: bool = False


def find_source(findings: Findings, path: str, asked: ModelSource) -> Source | None:
    """Return a source, or the metadata of one that is not on this machine."""
    return findings.attempt(path, "checkpoint", lambda: _find(asked))


def read_checkpoint(findings: Findings, chosen: Selection, path: str, asked: ModelSource) -> CheckedModel:
    """Read a model; an unknown family is allowed if the backend does not convert."""
    source = find_source(findings, path, asked)
    if source is None:
        return CheckedModel()
    try:
        return CheckedModel(source, read_model(source, asked.dtype))
    except CheckpointError as error:
        _report_unread(findings, chosen, path, source, error)
        return CheckedModel(source)


def _find(asked: ModelSource) -> Source:
    try:
        return load_source(locate_source(asked))
    except NotPreparedError:
        from trtspec.backends.steps.cache_source import load_stored_source
        from trtspec.core.paths import store_dir
        from trtspec.store.store import Store  # imported here because most recipes do not need it

        return load_stored_source(asked, Store(store_dir())) or preview_source(asked)


def _report_unread(findings: Findings, chosen: Selection, path: str, source: Source, error: CheckpointError) -> None:
    """Report a checkpoint of an unknown family, unless the backend runs it and its config has the sizes."""
    if chosen.converts:
        hint = error.hint
        if isinstance(error, UnsupportedModel):
            hint = unconverted_hint(chosen.recipe.speculation.method)
        if isinstance(error, UnsupportedArchitecture):
            hint = f"{hint}; docs/extending.md describes how to add a family"
        findings.error(path, "checkpoint", f"{error.where}: {error.message}" if error.where else error.message, hint)
        return
    reason = (
        f"no family describes {error.architecture}" if isinstance(error, UnsupportedArchitecture) else error.message
    )
    try:
        read_memory_profile(source)
    except CheckpointError as lacking:
        findings.warn(path, "not-read", f"{reason}, and its config {lacking.message}: its memory is unknown")
