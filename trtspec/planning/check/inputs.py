# SPDX-License-Identifier: Apache-2.0
"""What all checks share: the diagnostics found so far, the method and backend of the recipe, and its checkpoints.

Checkpoints are read from local files or, if they are not on this machine, from cached metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from trtspec.backends.base import AUTO, Backend, choose_backend, find_backend, stand_in_version, unconverted_hint
from trtspec.backends.context import SelectedBackend
from trtspec.checkpoints.memory_profile import read_memory_profile
from trtspec.checkpoints.model_config import ModelConfig
from trtspec.checkpoints.previews import with_model_ids
from trtspec.checkpoints.resolve import locate_source, preview_source
from trtspec.checkpoints.source import NotPreparedError, Source, load_source
from trtspec.checkpoints.source_model import SourceModel, read_model
from trtspec.core.diagnostics import Diagnostic
from trtspec.core.errors import (
    CheckpointError,
    TrtspecError,
    UnsupportedArchitecture,
    UnsupportedModel,
    describe_os_error_at,
    os_error_remedy,
)
from trtspec.methods.base import Method, find_method
from trtspec.methods.draft_head import SourceHead
from trtspec.recipe.load import LoadedRecipe
from trtspec.recipe.schema import ModelSource, Recipe

T = TypeVar("T")


@dataclass
class Findings:
    """The diagnostics of a recipe; with `will_prepare` sources that a build will download are not errors."""

    loaded: LoadedRecipe
    will_prepare: bool = False
    diagnostics: list[Diagnostic] = field(default_factory=list)

    def add(self, diagnostics: Iterable[Diagnostic]) -> None:
        """Add diagnostics, with the locations of their keys in the recipe."""
        self.diagnostics += [
            replace(self.loaded.located(each), message=with_model_ids(each.message)) for each in diagnostics
        ]

    def error(self, path: str, code: str, message: str, hint: str | None = None) -> None:
        """Add a problem that prevents a build."""
        self.add([Diagnostic(path, code, message, hint)])

    def warn(self, path: str, code: str, message: str, hint: str | None = None) -> None:
        """Add a problem that does not prevent a build."""
        self.add([Diagnostic(path, code, message, hint, "warning")])

    def attempt(self, path: str, code: str, action: Callable[[], T]) -> T | None:
        """Return the result of an action; if it fails, add an error at `path` and return None."""
        try:
            return action()
        except TrtspecError as error:
            if self.will_prepare and isinstance(error, NotPreparedError):
                return None
            self.error(path, code, f"{error.where}: {error.message}" if error.where else error.message, error.hint)
        except OSError as error:
            if (refused := describe_os_error_at(error, "a file of the recipe")) is None:
                raise
            self.error(path, code, refused, os_error_remedy(error))
        return None

    def count_errors(self) -> int:
        return sum(each.severity == "error" for each in self.diagnostics)


@dataclass(frozen=True)
class Selection:
    """A recipe and its selections; unknown or incompatible ones are None."""

    recipe: Recipe
    method: Method | None
    backend: Backend | None = None
    choice: SelectedBackend | None = None

    @property
    def converts(self) -> bool:
        """Return whether checkpoints are converted; True until a backend is chosen."""
        return self.backend is None or self.backend.converts

    @property
    def maps_vocabularies(self) -> bool:
        """Return whether the backend supports a draft model with a different vocabulary."""
        version, method = self.choice.version if self.choice else None, self.recipe.speculation.method
        return self.backend is not None and version is not None and self.backend.maps_vocabularies(version, method)

    def positions(self, config: ModelConfig) -> int:
        """Return the maximum text length on the backend, which may not support sliding windows."""
        return self.backend.positions(config) if self.backend else config.exact_positions


def resolve_selection(findings: Findings) -> Selection:
    """Return the recipe's selections; failures are added to the findings."""
    recipe = findings.loaded.recipe
    engine, name = recipe.engine, recipe.speculation.method
    method = findings.attempt("speculation.method", "method", lambda: find_method(name))
    backend = None
    if engine.backend != AUTO:
        backend = findings.attempt("engine.backend", "backend", lambda: find_backend(engine.backend))
        if backend is None:
            return Selection(recipe, method)
    choice = findings.attempt("engine.version", "version", lambda: choose_backend(engine, name))
    backend = find_backend(choice.name) if choice else backend
    if choice and backend and (known := stand_in_version(backend, choice.version)):
        message = f"{choice.name} {choice.version} is not known: it is planned as {known}, the nearest known version"
        hint = "its options may differ; test the deployment, or set a known version"
        findings.add([Diagnostic("engine.version", "unknown-version", message, hint, "warning")])
    return Selection(recipe, method, backend, choice)


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
        from trtspec.backends.common.cache_source import load_stored_source
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
