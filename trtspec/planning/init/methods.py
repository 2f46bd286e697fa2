# SPDX-License-Identifier: Apache-2.0
"""Find the methods that can be proposed for the given checkpoints, each with a backend that runs it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from trtspec.backends.base import find_backend
from trtspec.backends.choose import AUTO, choose_backend
from trtspec.backends.context import SelectedBackend as BackendChoice
from trtspec.checkpoints.source import Source
from trtspec.core.errors import TrtspecError
from trtspec.core.gpus import Gpu
from trtspec.methods.base import Method, Suggestion, find_method, methods
from trtspec.recipe.schema import Engine


@dataclass(frozen=True)
class MethodProposal:
    """A proposed method, its options and reason, and its backend."""

    method: str
    suggestion: Suggestion
    backend: BackendChoice


def propose_methods(
    method: str | None, backend: str | None, target: Source, draft: Source | None, gpu: Gpu | None
) -> list[MethodProposal]:
    """Return proposals, best first: the named method, the method of the draft, or methods without a draft.

    TrtspecError for an unknown method or backend, and for a method that does not fit the draft.
    """
    suggestions = [_named(method, target, draft)] if method else _suggested(target, draft)
    engine = Engine(backend=backend or AUTO, gpu=gpu.name if gpu else None)
    found = [MethodProposal(name, suggestion, _choose(engine, name)) for name, suggestion in suggestions]
    running = [way for way in found if way.method in find_backend(way.backend.name).methods()]
    if running or method or draft:
        return running or found  # `check` reports a method that the backend does not run
    chosen = _choose(engine, "none")
    return [MethodProposal("none", Suggestion(0, f"every method of {chosen.name} needs a draft"), chosen)]


def _choose(engine: Engine, method: str) -> BackendChoice:
    chosen = choose_backend(engine, method)
    return chosen if engine.backend == AUTO else replace(chosen, why="set by --backend")


def _named(name: str, target: Source, draft: Source | None) -> tuple[str, Suggestion]:
    method = find_method(name)
    if method.drafts_with == "nothing" and draft:
        raise TrtspecError(f"{name} does not use a draft", hint="remove DRAFT or --method")
    if method.drafts_with != "nothing" and draft is None:
        raise TrtspecError(f"{name} needs a {method.drafts_with}", hint="name it: trtspec init TARGET DRAFT")
    suggestion = _ask(method, draft or target) or Suggestion(0, "")
    return name, replace(suggestion, why="set by --method")


def _suggested(target: Source, draft: Source | None) -> list[tuple[str, Suggestion]]:
    """Return the best method for a draft, or all methods without a draft, best first."""
    looked = draft or target
    found = [
        (name, suggestion)
        for name, method in methods().items()
        if (method.drafts_with == "nothing") == (draft is None) and (suggestion := _ask(method, looked))
    ]
    found.sort(key=lambda pair: pair[1].rank)
    return found[:1] if draft else found


def _ask(method: Method, source: Source) -> Suggestion | None:
    return method.suggest(source) if method.suggest else None
