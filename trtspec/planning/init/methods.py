# SPDX-License-Identifier: Apache-2.0
"""Which methods can be proposed for what is given, each with the backend that would run it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from trtspec.backends.base import find_backend
from trtspec.backends.choose import AUTO, choose
from trtspec.backends.context import Choice as BackendChoice
from trtspec.checkpoints.source import Source
from trtspec.core.errors import TrtspecError
from trtspec.core.gpus import Gpu
from trtspec.methods.base import Method, Suggestion, find_method, methods
from trtspec.recipe.schema import Engine


@dataclass(frozen=True)
class Way:
    """A method, why and with which options, and the backend."""

    method: str
    suggestion: Suggestion
    backend: BackendChoice


def ways(method: str | None, backend: str | None, target: Source, draft: Source | None, gpu: Gpu | None) -> list[Way]:
    """Return what can be proposed, the best first: what is named, what the draft is for, or what needs no draft.

    Raises TrtspecError for a method or backend that nobody brings, and for a method that the draft does not go with.
    """
    suggestions = [_named(method, target, draft)] if method else _suggested(target, draft)
    engine = Engine(backend=backend or AUTO, gpu=gpu.name if gpu else None)
    found = [Way(name, suggestion, _choose(engine, name)) for name, suggestion in suggestions]
    running = [way for way in found if way.method in find_backend(way.backend.name).methods()]
    if running or method or draft:
        return running or found  # what the backend does not run, `check` says
    chosen = _choose(engine, "none")
    return [Way("none", Suggestion(0, f"{chosen.name} runs no method that needs no draft"), chosen)]


def _choose(engine: Engine, method: str) -> BackendChoice:
    chosen = choose(engine, method)
    return chosen if engine.backend == AUTO else replace(chosen, why="as --backend says")


def _named(name: str, target: Source, draft: Source | None) -> tuple[str, Suggestion]:
    method = find_method(name)
    if method.drafts_with == "nothing" and draft:
        raise TrtspecError(f"{name} drafts with nothing of its own", hint="leave out DRAFT, or --method")
    if method.drafts_with != "nothing" and draft is None:
        raise TrtspecError(f"{name} drafts with a {method.drafts_with}", hint="name it: trtspec init TARGET DRAFT")
    suggestion = _ask(method, draft or target) or Suggestion(0, "")
    return name, replace(suggestion, why="as --method says")


def _suggested(target: Source, draft: Source | None) -> list[tuple[str, Suggestion]]:
    """Return the best method for a draft, or all that need none, the best first."""
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
