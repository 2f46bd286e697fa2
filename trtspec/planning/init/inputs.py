# SPDX-License-Identifier: Apache-2.0
"""Inputs of a proposed recipe: the GPUs, the checkpoints, and the suitable methods.

Reads only the headers and configs of checkpoints.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from math import prod

from trtspec.backends.base import AUTO, choose_backend, find_backend
from trtspec.backends.context import SelectedBackend as BackendChoice
from trtspec.checkpoints.resolve import choose_commit, find_source, is_hub_id
from trtspec.checkpoints.source import Source, load_source, locate_model
from trtspec.core.errors import CheckpointError, TrtspecError
from trtspec.core.gpus import Gpu, detect_gpus, find_gpu
from trtspec.methods.base import Method, Suggestion, find_method, methods
from trtspec.recipe.schema import Engine, ModelSource

MOST_GPUS = 8  # assumed number of GPUs of a machine that is not this one


@dataclass(frozen=True)
class InitHardware:
    """GPU model and number of GPUs for a proposed recipe, with the reason `why`; `gpu` is None if unknown."""

    gpu: Gpu | None
    count: int
    why: str


def machine_for(name: str | None) -> InitHardware:
    """Return the hardware with the named GPU, or this machine's if `name` is None; TrtspecError for an unknown name."""
    if name is not None:
        return InitHardware(find_gpu(name), MOST_GPUS, "set by --gpu")
    try:
        seen = detect_gpus()
    except TrtspecError as error:
        return InitHardware(None, 0, f"{error.where} {error.message}; name one with --gpu")
    if not seen:
        return InitHardware(None, 0, "nvidia-smi shows none here; name one with --gpu, as h100")
    kind = seen[0].kind
    if kind is None:
        return InitHardware(None, 0, f"the {seen[0].name} here is unknown; name another with --gpu")
    count = sum(each.is_a(kind) for each in seen)
    return InitHardware(kind, count, f"nvidia-smi shows {count} of them here")


@dataclass(frozen=True)
class InputModel:
    """A checkpoint for a proposed recipe: its recipe entry (`asked`), its headers, and the reason for its revision.

    A directory is an absolute path in the recipe entry.
    """

    asked: ModelSource
    source: Source
    revision_why: str = ""

    @property
    def num_parameters(self) -> int:
        """Return the total number of elements of all tensors."""
        return sum(prod(tensor.shape) for tensor in self.source.tensors.values())


def open_checkpoint(written: str) -> InputModel:
    """Read a checkpoint given on the command line as a directory or a hub id, which is pinned to its newest commit.

    Raises CheckpointError if it is not a checkpoint or not accessible.
    """
    if is_hub_id(written):
        revision, why = choose_commit(written)
        asked = ModelSource(model=written, revision=revision)
        return InputModel(asked, find_source(asked), why)
    path = os.path.abspath(os.path.expanduser(written))
    root = locate_model(path, None)
    if not (root / "config.json").is_file():
        hint = "a checkpoint is a directory with config.json and *.safetensors"
        raise CheckpointError("no config.json", where=str(root), hint=hint)
    return InputModel(ModelSource(model=path), load_source(root))


@dataclass(frozen=True)
class MethodProposal:
    """A proposed speculation method with its draft length, options and reason, and the backend that runs it."""

    method: str
    suggestion: Suggestion
    backend: BackendChoice


def propose_methods(
    method: str | None, backend: str | None, target: Source, draft: Source | None, gpu: Gpu | None
) -> list[MethodProposal]:
    """Return method proposals, best first: the named method, the draft's method, or all methods without a draft.

    Raises TrtspecError for an unknown method or backend, and for a method that does not fit the draft.
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
    """Return the best method for the draft; without a draft, all methods that work without one, best first."""
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
