# SPDX-License-Identifier: Apache-2.0
"""Types shared by all checks: the diagnostics found so far, the selected method and backend, and the checkpoints.

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
    """The diagnostics of a recipe so far; with `will_prepare`, sources that a build will download are not errors."""

    loaded: LoadedRecipe
    will_prepare: bool = False
    diagnostics: list[Diagnostic] = field(default_factory=list)

    def add(self, diagnostics: Iterable[Diagnostic]) -> None:
        """Add diagnostics, located in the recipe file and with hub ids in place of cache paths in their messages."""
        self.diagnostics += [
            replace(self.loaded.located(each), message=with_model_ids(each.message)) for each in diagnostics
        ]

    def error(self, path: str, code: str, message: str, hint: str | None = None) -> None:
        """Add a diagnostic that prevents a build."""
        self.add([Diagnostic(path, code, message, hint)])

    def warn(self, path: str, code: str, message: str, hint: str | None = None) -> None:
        """Add a diagnostic that does not prevent a build."""
        self.add([Diagnostic(path, code, message, hint, "warning")])

    def attempt(self, path: str, code: str, action: Callable[[], T]) -> T | None:
        """Return `action()`; if it raises TrtspecError or a known OSError, add an error at `path` and return None."""
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
    """A recipe with its method and backend, which are None if they are unknown or incompatible."""

    recipe: Recipe
    method: Method | None
    backend: Backend | None = None
    choice: SelectedBackend | None = None

    @property
    def converts(self) -> bool:
        """Return True if the backend converts checkpoints, or if the backend is not selected yet."""
        return self.backend is None or self.backend.converts

    @property
    def maps_vocabularies(self) -> bool:
        """Return True if the backend supports a draft model whose vocabulary differs from the target's."""
        version, method = self.choice.version if self.choice else None, self.recipe.speculation.method
        return self.backend is not None and version is not None and self.backend.maps_vocabularies(version, method)

    def positions(self, config: ModelConfig) -> int:
        """Return the maximum text length in tokens on the backend, which may not support sliding windows."""
        return self.backend.positions(config) if self.backend else config.exact_positions


def resolve_selection(findings: Findings) -> Selection:
    """Select the recipe's method and backend; failures are added to `findings`."""
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
    """A checkpoint, parsed as far as possible: `model` for a known family, `head` for a draft head.

    `has_other_vocabulary` means that the tokens of a draft model must be translated to the target's.
    """

    source: Source | None = None
    model: SourceModel | None = None
    head: SourceHead | None = None
    has_other_vocabulary: bool = False


def find_source(findings: Findings, path: str, asked: ModelSource) -> Source | None:
    """Load a source, or its cached metadata if it is not on this machine; return None after an error."""
    return findings.attempt(path, "checkpoint", lambda: _find(asked))


def read_checkpoint(findings: Findings, chosen: Selection, path: str, asked: ModelSource) -> CheckedModel:
    """Read a model; an unknown family is an error only if the backend converts checkpoints."""
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
        from trtspec.store.store import Store  # lazy: most recipes do not need it

        return load_stored_source(asked, Store(store_dir())) or preview_source(asked)


def _report_unread(findings: Findings, chosen: Selection, path: str, source: Source, error: CheckpointError) -> None:
    """Report a checkpoint that could not be parsed: an error if it must be converted, else at most a warning."""
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
