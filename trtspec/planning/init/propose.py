# SPDX-License-Identifier: Apache-2.0
"""Choice of a recipe's settings from its checkpoints: the first method, format and sizes that pass `check`.

The maximum text length and the number of GPUs follow from the backend's memory plan.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path

from trtspec.backends.base import Backend, find_backend, unconverted_hint
from trtspec.backends.common.memory import MemoryPlan
from trtspec.backends.context import PlanContext
from trtspec.checkpoints.source_model import SourceModel, parallel_mapping, read_model, requested_scheme
from trtspec.core.diagnostics import Mark
from trtspec.core.errors import CheckpointError, UnsupportedModel
from trtspec.core.installation import installed_version
from trtspec.methods.base import find_method
from trtspec.planning.check.recipe import CheckResult, check_recipe
from trtspec.planning.init.inputs import InitHardware, InputModel, MethodProposal
from trtspec.planning.init.recipe_text import RecipeChoice, build_document
from trtspec.recipe.load import LoadedRecipe
from trtspec.recipe.schema import Parallel, Recipe
from trtspec.recipe.yaml_tree import RecipeNode

RANKS = (1, 2, 4, 8)
USUAL_LEN, SHORT_LEN = 8192, 1024  # longest and shortest proposed max_seq_len in tokens


@dataclass(frozen=True)
class Fit:
    """A number of GPUs for the target and a maximum text length, with the memory plan of the fullest device.

    `fullest` is None if the memory of all devices is unknown, `holds` is True if everything fits, and `longest` is the
    text length that was tried first.
    """

    tensor: int
    max_seq_len: int
    fullest: MemoryPlan | None
    holds: bool
    longest: int

    @property
    def why(self) -> str:
        """Return a description of the memory used on the fullest device and of any excess; "" if unknown."""
        if self.fullest is None:
            return ""
        taken, limit = (count / 2**30 for count in (self.fullest.total_bytes, self.fullest.limit_bytes))
        return f"{taken:.1f} of {limit:.1f} GiB used" + ("" if self.holds else ": too much")


def text_len(backend: Backend, target: SourceModel | None, draft: SourceModel | None) -> tuple[int, str]:
    """Return the longest text in tokens that both models support, at most USUAL_LEN, and the limiting reason."""
    if target is None:
        return 2048, "the default: the target's positions are unknown"
    models = {"the target's maximum positions": target} | ({"the draft's maximum positions": draft} if draft else {})
    found = [(min(backend.positions(each.config), each.config.max_positions), why) for why, each in models.items()]
    found.append((USUAL_LEN, "longer texts take more memory: raise it if needed"))
    return min(found, key=itemgetter(0))


def fit(context: PlanContext, backend: Backend, machine: InitHardware) -> Fit:
    """Return the fewest GPUs that hold the longest text; if no number of GPUs does, halve the text length and retry.

    If nothing fits, return the longest text on the most GPUs.
    """
    longest, ranks = context.recipe.engine.max_seq_len, _ranks(context, backend, machine)
    halves = (longest >> power for power in range(1, longest.bit_length()))
    lengths = [longest, *(half for half in halves if half >= SHORT_LEN)]
    tries = (_try(context, backend, tensor, tokens) for tokens in lengths for tensor in ranks)
    return next((tried for tried in tries if tried.holds), None) or _try(context, backend, ranks[-1], longest)


def _ranks(context: PlanContext, backend: Backend, machine: InitHardware) -> list[int]:
    """Return the numbers of GPUs over which the target can be divided, in ascending order."""
    if machine.gpu is None or backend.in_process:
        return [1]
    return [count for count in RANKS if count <= machine.count and _divides(context, backend, count)]


def _divides(context: PlanContext, backend: Backend, tensor: int) -> bool:
    asked = _divided(context, tensor).recipe.target
    found = []
    if context.target:
        found += context.target.diagnose(requested_scheme(asked), parallel_mapping(asked), converts=backend.converts)
    if context.head:
        found += context.head.diagnose(parallel_mapping(asked))
    return not any(each.severity == "error" and each.path.endswith("parallel") for each in found)


def _divided(context: PlanContext, tensor: int) -> PlanContext:
    target = context.recipe.target.model_copy(update={"parallel": Parallel(tensor=tensor)})
    return replace(context, recipe=context.recipe.model_copy(update={"target": target}))


def _try(context: PlanContext, backend: Backend, tensor: int, tokens: int) -> Fit:
    divided = _divided(context, tensor)
    recipe = divided.recipe.with_engine(max_seq_len=tokens, max_input_len=max(1, tokens // 2))
    plans = backend.memory(replace(divided, recipe=recipe))
    known = [plan for plan in plans if plan.limit_bytes]
    fullest = max(known, key=lambda plan: plan.total_bytes / plan.limit_bytes, default=None)
    holds = fullest is None or fullest.total_bytes <= fullest.limit_bytes
    return Fit(tensor, tokens, fullest, holds, context.recipe.engine.max_seq_len)


MAX_BATCH_SIZE = 8
ONLINE = "--set target.quantization.weights=fp8 quantizes it to FP8 while loading, in half the memory"


@dataclass(frozen=True)
class RecipeCandidate:
    """A combination of method, backend and storage format, before the sizes of the recipe are determined.

    `quantization` is the recipe value for the weights and the KV cache; "" leaves both unchanged.
    """

    name: RecipeChoice
    target: InputModel
    draft: InputModel | None
    machine: InitHardware
    way: MethodProposal
    target_model: SourceModel | None
    draft_model: SourceModel | None
    quantization: str
    quantization_why: str

    @property
    def backend(self) -> Backend:
        return find_backend(self.way.backend.name)


def propose(
    name: RecipeChoice,
    target: InputModel,
    draft: InputModel | None,
    machine: InitHardware,
    ways: Sequence[MethodProposal],
) -> tuple[RecipeChoice, ...]:
    """Return the settings of the first candidate that passes `check`, else of the candidate with the fewest errors.

    Raises CheckpointError for a model that the backend cannot run.
    """
    best: tuple[RecipeChoice, ...] = ()
    fewest, refused = None, ""
    for way in ways:
        backend = find_backend(way.backend.name)
        target_model = _read(target, way, backend)
        drafts = draft if find_method(way.method).drafts_with == "model" else None
        draft_model = _read(drafts, way, backend) if drafts else None
        for stored in _formats(backend, machine, target_model):
            candidate = RecipeCandidate(name, target, draft, machine, way, target_model, draft_model, *stored)
            choices, result = _sized(candidate, refused)
            if not result.errors:
                return choices
            if fewest is None or len(result.errors) < fewest:
                best, fewest = choices, len(result.errors)
            refused = result.errors[0].message
    return best


def _read(given: InputModel, way: MethodProposal, backend: Backend) -> SourceModel | None:
    """Parse a model; return None for an unknown family that the backend runs unconverted."""
    try:
        return read_model(given.source, "auto")
    except CheckpointError as error:
        if not backend.converts:
            return None
        if isinstance(error, UnsupportedModel):
            error.hint = unconverted_hint(way.method).replace("engine.backend: ", "--backend ")
        raise


def _formats(backend: Backend, machine: InitHardware, model: SourceModel | None) -> list[tuple[str, str]]:
    """Return the possible values of RecipeCandidate.quantization with their reasons, best first."""
    gpu = machine.gpu
    if model is None or not backend.converts:
        return [("", "this backend runs the checkpoint unchanged")]
    if model.prequantized:
        return [("", f"the checkpoint is stored as {model.prequantized.describe()} and used unchanged")]
    if gpu is None:
        return [("", "no GPU is known that supports FP8")]
    if not gpu.has_fp8:
        return [("", f"{gpu.name} lacks FP8, which needs compute capability 8.9; it has {gpu.sm / 10}")]
    if backend.in_process:
        return [("", "this engine simulates FP8, which is not faster")]
    why = f"{gpu.name} supports FP8: half the memory, and faster; output may differ from {model.config.dtype}"
    return [("fp8", why), ("", "")]


def _sized(candidate: RecipeCandidate, refused: str) -> tuple[tuple[RecipeChoice, ...], CheckResult]:
    """Return a candidate's settings with sizes that fit its memory, and the result of `check` on them."""
    backend = candidate.backend
    length = text_len(backend, candidate.target_model, candidate.draft_model)
    fitted = Fit(1, length[0], None, True, length[0])
    if context := _examine(tuple(_choices(candidate, fitted, length, refused))).context:
        fitted = fit(context, backend, candidate.machine)
    choices = tuple(_choices(candidate, fitted, length, refused))
    result = _examine(choices)
    if not result.errors and _quantizes_while_loading(candidate, choices):
        online = {"target.quantization": f"; {ONLINE}"}
        choices = tuple(replace(each, why=each.why + online.get(each.path, "")) for each in choices)
    return choices, result


def _quantizes_while_loading(candidate: RecipeCandidate, choices: Sequence[RecipeChoice]) -> bool:
    """Return True if the engine can quantize the checkpoint to FP8 while loading it on the selected GPU."""
    gpu, model = candidate.machine.gpu, candidate.target_model
    if candidate.backend.converts or not (gpu and gpu.has_fp8) or (model and model.prequantized):
        return False
    kept = [each for each in choices if each.path != "target.quantization"]
    result = _examine((*kept, RecipeChoice("target.quantization.weights", "fp8", "")))
    return not any(each.path.startswith("target.quantization") for each in result.errors)


def _examine(choices: Sequence[RecipeChoice]) -> CheckResult:
    """Run `check` on settings that are not in a file yet."""
    nowhere = RecipeNode({}, Mark(), Mark(), Path())
    loaded = LoadedRecipe(Recipe.model_validate(build_document(choices)), Path(), nowhere)
    return check_recipe(loaded)


def _choices(candidate: RecipeCandidate, fitted: Fit, length: tuple[int, str], refused: str) -> Iterator[RecipeChoice]:
    yield RecipeChoice("schema", "trtspec.recipe/1", "")
    yield candidate.name
    yield from _target_choices(candidate, fitted, refused)
    yield from _speculation_choices(candidate)
    yield from _engine_choices(candidate, fitted, length)
    yield RecipeChoice("gates.lossless", True, "the output must equal the target's, with any drafter")


def _target_choices(candidate: RecipeCandidate, fitted: Fit, refused: str) -> Iterator[RecipeChoice]:
    yield from _source_choices("target", candidate.target, _described(candidate.target, candidate.target_model))
    quantization, why, gpu = candidate.quantization, candidate.quantization_why, candidate.machine.gpu
    if quantization:
        yield RecipeChoice("target.quantization.weights", quantization, why)
        yield RecipeChoice("target.quantization.kv_cache", quantization, "twice the tokens in the same memory")
    else:
        why = why or f"FP8 is incompatible with other settings: {refused}"
        yield RecipeChoice("target.quantization", None, why)
    if gpu and not candidate.backend.in_process:
        why = "it fits one GPU" if fitted.tensor == 1 else f"the fewest {gpu.name} that fit it and its KV cache"
        why = why if fitted.holds else "it does not fit even these"
        yield RecipeChoice("target.parallel.tensor", fitted.tensor, why)


def _source_choices(path: str, given: InputModel, why: str) -> Iterator[RecipeChoice]:
    yield RecipeChoice(f"{path}.model", given.asked.model, why)
    if given.asked.revision:
        yield RecipeChoice(f"{path}.revision", given.asked.revision, given.revision_why)


def _described(given: InputModel, model: SourceModel | None) -> str:
    kind = f"{model.family} in {model.config.dtype}, " if model else ""
    millions = given.num_parameters / 1e6
    return f"{kind}{millions / 1e3:.1f} B parameters" if millions >= 1e3 else f"{kind}{millions:.1f} M parameters"


def _relative_size(target: int, draft: int) -> str:
    if target == draft:
        return "as large as"
    larger, smaller = max(target, draft), min(target, draft)
    return f"{larger / smaller:.1f} times {'smaller' if draft < target else 'larger'} than"


def _speculation_choices(candidate: RecipeCandidate) -> Iterator[RecipeChoice]:
    way, draft = candidate.way, candidate.draft
    method = find_method(way.method)
    yield RecipeChoice("speculation.method", way.method, way.suggestion.why)
    if draft_len := min(way.suggestion.draft_len, method.draft_lens[-1] if method.draft_lens else 0):
        yield RecipeChoice("speculation.draft_len", draft_len, "the length DRAFT was trained for")
    elif method.default_draft_len:
        why = f"usual for {way.method}; find the best for your texts with `trtspec tune`"
        yield RecipeChoice("speculation.draft_len", method.default_draft_len, why)
    if draft:
        size = _relative_size(candidate.target.num_parameters, max(1, draft.num_parameters))
        why = f"{_described(draft, candidate.draft_model)}, {size} the target"
        yield from _source_choices("speculation.draft", draft, why)
    for key, value in way.suggestion.options.items():
        yield RecipeChoice(f"speculation.options.{key}", value, way.suggestion.options_why)


def _engine_choices(candidate: RecipeCandidate, fitted: Fit, length: tuple[int, str]) -> Iterator[RecipeChoice]:
    way, machine = candidate.way, candidate.machine
    yield RecipeChoice("engine.backend", way.backend.name, way.backend.why)
    if way.backend.version:
        is_here = installed_version(candidate.backend.package) == way.backend.version
        newest = max(candidate.backend.versions(), key=_numbers)
        is_newest = way.backend.version == newest
        why = "the newest known" if is_newest else f"the default; the newest known is {newest}"
        why = "installed here" if is_here else why
        yield RecipeChoice("engine.version", way.backend.version, why)
    yield RecipeChoice("engine.gpu", machine.gpu.name if machine.gpu else None, machine.why)
    why = f"concurrent requests; {fitted.why}" if fitted.why else ""
    yield RecipeChoice("engine.max_batch_size", MAX_BATCH_SIZE, why)
    half = "half of max_seq_len, which leaves the other half to the response"
    yield RecipeChoice("engine.max_input_len", max(1, fitted.max_seq_len // 2), half)
    tokens, why = length
    if fitted.max_seq_len < fitted.longest:
        why = f"the longest of which {MAX_BATCH_SIZE} fit the memory; {fitted.longest} would be too much"
    elif fitted.max_seq_len < tokens:
        why = "the target's maximum positions"
    yield RecipeChoice("engine.max_seq_len", fitted.max_seq_len, why)


def _numbers(version: str) -> tuple[list[int], bool, str]:
    """Return the sort key of a version, in which 1.4.0rc1 precedes 1.4.0."""
    release, pre = re.fullmatch(r"([0-9.]*)(.*)", version, re.DOTALL).groups()  # type: ignore[union-attr]
    return [int(part) for part in release.split(".") if part], not pre, pre
