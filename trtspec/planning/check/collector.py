# SPDX-License-Identifier: Apache-2.0
"""Collect the diagnostics of a check, each at its location in the recipe."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from trtspec.checkpoints.metadata_cache import with_model_ids
from trtspec.checkpoints.source import NotPreparedError
from trtspec.core.diagnostics import Diagnostic
from trtspec.core.errors import TrtspecError, describe_os_error_at, os_error_remedy
from trtspec.recipe.load import LoadedRecipe

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
        """Return the number of errors."""
        return sum(each.severity == "error" for each in self.diagnostics)
