# SPDX-License-Identifier: Apache-2.0
"""From checkpoints to the choices of a recipe: the first method, format and sizes that `check` has nothing against."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trtspec.backends.base import Backend, as_it_is, find_backend
from trtspec.checkpoints.model_config import ModelConfig
from trtspec.checkpoints.source_model import SourceModel, read_model
from trtspec.core.diagnostics import Mark
from trtspec.core.errors import CheckpointError, UnsupportedModel
from trtspec.core.processes import installed_version
from trtspec.methods.base import find_method
from trtspec.planning.check.recipe import CheckResult, check_recipe
from trtspec.planning.init.hardware import Machine
from trtspec.planning.init.inputs import Given
from trtspec.planning.init.methods import Way
from trtspec.planning.init.recipe_text import Choice, document_of
from trtspec.planning.init.sizes import Fit, TextLen, fit, text_len
from trtspec.recipe.load import LoadedRecipe
from trtspec.recipe.schema import Recipe
from trtspec.recipe.tree import Node

MAX_BATCH_SIZE = 8
ONLINE = "--set target.quantization.weights=fp8 has it make FP8 while it loads, in half the memory"


@dataclass(frozen=True)
class Format:
    """How the target would be stored: a recipe's words for weights and KV cache, "" for as it is, and why."""

    quantization: str
    why: str


@dataclass(frozen=True)
class Candidate:
    """What could be proposed, before its sizes are known: everything that the choices are made from."""

    name: Choice
    target: Given
    draft: Given | None
    machine: Machine
    way: Way
    target_model: SourceModel | None
    draft_model: SourceModel | None
    stored: Format

    @property
    def backend(self) -> Backend:
        """Return the backend that runs it."""
        return find_backend(self.way.backend.name)


def propose(
    name: Choice, target: Given, draft: Given | None, machine: Machine, ways: Sequence[Way]
) -> tuple[Choice, ...]:
    """Return the choices of the first candidate that fits together, of the one with the fewest errors where none does.

    Raises CheckpointError for a model that the backend could not run.
    """
    best: tuple[Choice, ...] = ()
    fewest, refused = None, ""
    for candidate in _candidates(name, target, draft, machine, ways):
        choices, result = _sized(candidate, refused)
        if fewest is None or len(result.errors) < fewest:
            best, fewest = choices, len(result.errors)
        if not result.errors:
            break
        refused = result.errors[0].message
    return best


def _candidates(
    name: Choice, target: Given, draft: Given | None, machine: Machine, ways: Sequence[Way]
) -> Iterator[Candidate]:
    for way in ways:
        backend = find_backend(way.backend.name)
        target_model = _read(target, way, backend)
        drafts = draft if find_method(way.method).drafts_with == "model" else None
        draft_model = _read(drafts, way, backend) if drafts else None
        for stored in _formats(backend, machine, target_model):
            yield Candidate(name, target, draft, machine, way, target_model, draft_model, stored)


def _read(given: Given, way: Way, backend: Backend) -> SourceModel | None:
    """Return a model; None for one of no family, which will do for a backend that converts nothing."""
    try:
        return read_model(given.source, "auto")
    except CheckpointError as error:
        if not backend.converts:
            return None
        if isinstance(error, UnsupportedModel):
            error.hint = as_it_is(way.method).replace("engine.backend: ", "--backend ")
        raise


def _formats(backend: Backend, machine: Machine, model: SourceModel | None) -> list[Format]:
    """Return how the target may be stored, the best first."""
    gpu = machine.gpu
    if model is None or not backend.converts:
        return [Format("", "this backend runs the checkpoint as it is")]
    if model.prequantized:
        return [Format("", f"the checkpoint is stored as {model.prequantized.describe()}, and taken as it is")]
    if gpu is None:
        return [Format("", "no GPU is named that would multiply FP8")]
    if not gpu.has_fp8:
        return [Format("", f"{gpu.name} has no FP8: it came with compute capability 8.9, and this is {gpu.sm / 10}")]
    if backend.in_process:
        return [Format("", "this engine simulates FP8, which is no faster")]
    why = f"{gpu.name} multiplies FP8: half the memory, and faster; texts may differ from those in {model.config.dtype}"
    return [Format("fp8", why), Format("", "")]


def _sized(candidate: Candidate, refused: str) -> tuple[tuple[Choice, ...], CheckResult]:
    """Return a candidate's choices with the sizes that its memory allows, and what `check` has against them."""
    backend = candidate.backend
    length = text_len(backend, _config(candidate.target_model), _config(candidate.draft_model))
    fitted = Fit(1, length.tokens, None, True, length.tokens)
    context = _examine(candidate, tuple(_choices(candidate, fitted, length, refused))).context
    if context:
        fitted = fit(context, backend, candidate.machine)
    choices = tuple(_choices(candidate, fitted, length, refused))
    result = _examine(candidate, choices)
    if not result.errors and _quantizes_while_loading(candidate, choices):
        choices = tuple(
            replace(each, why=f"{each.why}; {ONLINE}") if each.path == "target.quantization" else each
            for each in choices
        )
    return choices, result


def _quantizes_while_loading(candidate: Candidate, choices: Sequence[Choice]) -> bool:
    """Return whether the engine takes FP8 weights of a checkpoint that has none, on the GPU that is named."""
    gpu, model = candidate.machine.gpu, candidate.target_model
    if candidate.backend.converts or not (gpu and gpu.has_fp8) or (model and model.prequantized):
        return False
    kept = [each for each in choices if each.path != "target.quantization"]
    result = _examine(candidate, (*kept, Choice("target.quantization.weights", "fp8", "")))
    return not any(each.path.startswith("target.quantization") for each in result.errors)


def _config(model: SourceModel | None) -> ModelConfig | None:
    return model.config if model else None


def _examine(candidate: Candidate, choices: Sequence[Choice]) -> CheckResult:
    """Return what `check` says of choices that are in no file yet."""
    nowhere = Node({}, Mark(), Mark(), Path())
    loaded = LoadedRecipe(Recipe.model_validate(document_of(choices)), Path(), nowhere)
    return check_recipe(loaded)


def _choices(candidate: Candidate, fitted: Fit, length: TextLen, refused: str) -> Iterator[Choice]:
    yield Choice("schema", "trtspec.recipe/1", "")
    yield candidate.name
    yield from _of_target(candidate, fitted, refused)
    yield from _of_speculation(candidate)
    yield from _of_engine(candidate, fitted, length)
    yield Choice("gates.lossless", True, "the text has to be the target's own, whatever drafts")


def _of_target(candidate: Candidate, fitted: Fit, refused: str) -> Iterator[Choice]:
    yield from _of_source("target", candidate.target, _described(candidate.target, candidate.target_model))
    stored, gpu = candidate.stored, candidate.machine.gpu
    if stored.quantization:
        yield Choice("target.quantization.weights", stored.quantization, stored.why)
        yield Choice("target.quantization.kv_cache", stored.quantization, "twice the text in the same memory")
    else:
        yield Choice("target.quantization", None, stored.why or f"FP8 does not go with the rest: {refused}")
    if gpu and not candidate.backend.in_process:
        why = "one GPU holds it" if fitted.tensor == 1 else f"the fewest {gpu.name} that hold it with its KV cache"
        yield Choice("target.parallel.tensor", fitted.tensor, why if fitted.holds else "even so many do not hold it")


def _of_source(path: str, given: Given, why: str) -> Iterator[Choice]:
    yield Choice(f"{path}.model", given.asked.model, why)
    if given.asked.revision:
        yield Choice(f"{path}.revision", given.asked.revision, given.revision_why)


def _described(given: Given, model: SourceModel | None) -> str:
    kind = f"{model.family} in {model.config.dtype}, " if model else ""
    millions = given.num_parameters / 1e6
    return f"{kind}{millions / 1e3:.1f} B parameters" if millions >= 1e3 else f"{kind}{millions:.1f} M parameters"


def _of_speculation(candidate: Candidate) -> Iterator[Choice]:
    way, draft = candidate.way, candidate.draft
    method = find_method(way.method)
    yield Choice("speculation.method", way.method, way.suggestion.why)
    if draft_len := min(way.suggestion.draft_len, method.draft_lens[-1] if method.draft_lens else 0):
        yield Choice("speculation.draft_len", draft_len, "what DRAFT was trained for")
    elif method.default_draft_len:
        why = f"usual for {way.method}; `trtspec bench` tells which pays on your texts"
        yield Choice("speculation.draft_len", method.default_draft_len, why)
    if draft:
        ratio = candidate.target.num_parameters / max(1, draft.num_parameters)
        why = f"{_described(draft, candidate.draft_model)}, the target has {ratio:.1f} times as many"
        yield from _of_source("speculation.draft", draft, why)
    for key, value in way.suggestion.options.items():
        yield Choice(f"speculation.options.{key}", value, way.suggestion.options_why)


def _of_engine(candidate: Candidate, fitted: Fit, length: TextLen) -> Iterator[Choice]:
    way, machine = candidate.way, candidate.machine
    yield Choice("engine.backend", way.backend.name, way.backend.why)
    if way.backend.version:
        is_here = installed_version(candidate.backend.package) == way.backend.version
        yield Choice(
            "engine.version", way.backend.version, "installed here" if is_here else _usual(candidate.backend, way)
        )
    yield Choice("engine.gpu", machine.gpu.name if machine.gpu else None, machine.why)
    yield Choice("engine.max_batch_size", MAX_BATCH_SIZE, f"requests at once; {fitted.why}" if fitted.why else "")
    yield Choice("engine.max_input_len", max(1, fitted.max_seq_len // 2), "half of a text, so that answers are as long")
    yield Choice("engine.max_seq_len", fitted.max_seq_len, _why_so_long(fitted, length))


def _why_so_long(fitted: Fit, length: TextLen) -> str:
    """Return what bounds a text: the memory, the target's positions, or what is usual."""
    if fitted.max_seq_len < fitted.longest:
        return f"what the memory holds, {MAX_BATCH_SIZE} times; {fitted.longest} would be too much"
    return "all that the target has positions for" if fitted.max_seq_len < length.tokens else length.why


def _usual(backend: Backend, way: Way) -> str:
    """Return why a version is taken that is not installed here: it is the newest, or the default beside newer ones."""
    newest = max(backend.versions(), key=_numbers)
    return "the newest one known" if way.backend.version == newest else f"the default; the newest one known is {newest}"


def _numbers(version: str) -> tuple[list[int], bool, str]:
    """Return what versions are compared by: 1.4.0rc1 comes before 1.4.0."""
    release, pre = re.fullmatch(r"([0-9.]*)(.*)", version, re.DOTALL).groups()  # type: ignore[union-attr]
    return [int(part) for part in release.split(".") if part], not pre, pre
