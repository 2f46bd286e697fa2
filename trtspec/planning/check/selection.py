# SPDX-License-Identifier: Apache-2.0
"""Find the method, backend and backend version that a recipe names."""

from __future__ import annotations

from dataclasses import dataclass

from trtspec.backends.base import Backend, find_backend
from trtspec.backends.choose import AUTO, choose_backend
from trtspec.backends.context import SelectedBackend
from trtspec.checkpoints.model_config import ModelConfig
from trtspec.methods.base import Method, find_method
from trtspec.planning.check.collector import Findings
from trtspec.recipe.schema import Recipe


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
    return Selection(recipe, method, find_backend(choice.name) if choice else backend, choice)
