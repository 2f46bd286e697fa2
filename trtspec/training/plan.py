# SPDX-License-Identifier: Apache-2.0
"""Turn a training request into steps, run them with progress bars, and evaluate and publish the trained draft.

split -> generate responses -> measure before, train (here, or import an external result) -> convert the result
-> measure after -> compare -> publish

If the recipe names no draft, one is created after the responses, and the baseline is the target alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from trtspec.backends.base import in_process_backend
from trtspec.backends.common.convert import ConvertCheckpoint
from trtspec.backends.context import PlanContext
from trtspec.bench.documents import planned_target_sha256
from trtspec.bench.profile.acceptance import StepCounts
from trtspec.bench.sources import RECORD, prompt_digest
from trtspec.checkpoints.source import Source
from trtspec.checkpoints.source_model import SourceModel
from trtspec.core.errors import TrtspecError
from trtspec.core.registry import extension_names
from trtspec.engine.prompts.load import read_prompts
from trtspec.engine.settings import EngineSettings
from trtspec.methods.base import find_method
from trtspec.planning.init.recipe_text import relative_model
from trtspec.planning.pipeline import Build, open_store, plan_build, prepare_sources
from trtspec.planning.prediction.predict import step_cost
from trtspec.recipe.load import LoadedRecipe, load_recipe
from trtspec.recipe.resolve import ResolvedEngine
from trtspec.recipe.schema import Speculation
from trtspec.store.artifact_paths import checkpoint
from trtspec.store.executor import Observer, execute
from trtspec.store.files import FileReader, Files
from trtspec.store.plan import StepPlan
from trtspec.store.step import Step
from trtspec.training.draft_steps import AnswerPrompts, MakeDraft, MeasureDraft, TrainDraft, read_counts, read_held_out
from trtspec.training.evaluation import DraftComparison, TrainResult, check_draft_path, publish
from trtspec.training.split_prompts import SplitPrompts, read_num_skipped
from trtspec.training.texts import HELD_OUT, NO_SIZES, TEXTS, Sizes, TrainSettings, read_texts

ORIGIN_KEYS = ("revision", "allow_pickle", "sha256")  # keys of a recipe's draft that describe its origin


class TrainingProgress(Observer, Protocol):
    """Observer that shows the progress of the steps, including downloads and hashing of their sources."""

    def preparing(self, what: str, done: int, total: int) -> None:
        """Show the downloaded and the total bytes of a source."""

    def reading(self, done: int, total: int) -> None:
        """Show the hashed and the total bytes of the sources."""


ProgressFactory = Callable[[], AbstractContextManager[TrainingProgress]]


def plan_recipe(loaded: LoadedRecipe, watching: ProgressFactory) -> Build:
    """Return the build plan of a recipe, after downloading and hashing all its sources."""
    with watching() as bars:
        prepare_sources(loaded, bars.preparing)
        return plan_build(loaded, read_all=True, on_read=bars.reading)


def run_steps(steps: list[Step], build: Build, watching: ProgressFactory) -> list[Path]:
    """Run steps and their dependencies for a build; return the directory with the files of each step."""
    plan, store = StepPlan(steps), open_store()
    with watching() as bars, store.holding([step.key for step in plan.steps], build.recipe.name):
        found = {result.key: result for result in execute(plan, store, bars)}
    return [found[step.key].output.files_dir for step in steps]


@dataclass(frozen=True)
class TrainRequest:
    """Options of a training command; `out` is the destination of an improved draft.

    `sizes` apply to a draft created from scratch, if the recipe names none.
    """

    recipe: Path
    overrides: list[str]
    prompts: Path
    keep: Path | None
    held_out: Path | None
    out: Path | None
    max_tokens: int
    sampled: int
    settings: TrainSettings
    sizes: Sizes = NO_SIZES


def load_requested_recipe(request: TrainRequest, *overrides: str) -> LoadedRecipe:
    """Load the recipe of a request, with the engine of this process as backend."""
    return load_recipe(request.recipe, [*request.overrides, f"engine.backend={in_process_backend()[0]}", *overrides])


def load_for_training(request: TrainRequest, able: Collection[str]) -> LoadedRecipe:
    """Load the recipe as `load_requested_recipe` does; raise TrtspecError if its method is not one of `able`."""
    loaded = load_requested_recipe(request)
    speculation = loaded.recipe.speculation
    if speculation.method not in able:
        message = f"method {speculation.method} has no trainable draft; supported methods: {', '.join(able)}"
        raise TrtspecError(
            message, where=str(request.recipe), hint="choose another recipe, or --set speculation.method"
        )
    return loaded


def load_with_draft(request: TrainRequest, able: Collection[str]) -> LoadedRecipe:
    """Load the recipe as `load_for_training` does; raise TrtspecError also if it names no draft."""
    loaded = load_for_training(request, able)
    if loaded.recipe.speculation.draft is None:
        message = "names no draft, but external trainers start from one"
        raise TrtspecError(message, where=str(request.recipe), hint="create one with trtspec train --write")
    check_no_sizes(request)
    return loaded


def check_no_sizes(request: TrainRequest) -> None:
    """Raise TrtspecError if sizes are given for an existing draft."""
    if any(vars(request.sizes).values()):
        message, hint = "the sizes of the recipe's draft cannot be changed", "remove the size options, or the draft"
        raise TrtspecError(message, where=str(request.recipe), hint=hint)


def section_with(request: TrainRequest, draft: Path) -> dict[str, Any]:
    """Return the recipe's `speculation` section with the draft at `draft`, as a path relative to the recipe."""
    speculation = load_recipe(request.recipe, request.overrides).recipe.speculation
    section = speculation.model_dump(exclude_defaults=True, mode="json")
    model = relative_model(str(draft.absolute()), request.recipe.absolute().parent)
    return section | {"draft": _drafting(section.get("draft", {}), model)}


def _drafting(section: dict[str, Any], model: str) -> dict[str, Any]:
    return {"model": model} | {key: value for key, value in section.items() if key not in ("model", *ORIGIN_KEYS)}


def build_with(request: TrainRequest, draft: Path) -> Build:
    """Plan the recipe with the draft at `draft`, which is read and checked like any draft of a recipe."""
    section = load_recipe(request.recipe, request.overrides).recipe.speculation.draft
    own = section.model_dump(exclude_defaults=True, mode="json") if section else {}
    written = f"speculation.draft={json.dumps(_drafting(own, str(draft)))}"
    return plan_build(load_requested_recipe(request, written), read_all=True)


def answer_step(request: TrainRequest, build: Build) -> AnswerPrompts:
    """Return the step that generates the target's responses; its `prompts` is the step that splits the prompts."""
    reader, home = file_reader(), build.context.sources["target"]
    tokenizer = reader.read(home.root, home.tokenizer_files)
    target, engine = _converted(build)[0], build.recipe.engine
    prompts = SplitPrompts(
        tokenizer,
        _file(reader, request.prompts),
        tuple(_file(reader, path) for path in (request.keep,) if path),
        tuple(_file(reader, path) for path in (request.held_out,) if path),
        _longest_prompt(request, engine),
        request.settings.seed,
    )
    most_tokens = min(engine.max_num_tokens, EngineSettings.max_num_tokens)  # larger values are for steps that draft
    alone = EngineSettings(
        max_batch_size=engine.max_batch_size, max_seq_len=engine.max_seq_len, max_num_tokens=most_tokens
    )
    return AnswerPrompts(
        target, target.bare_key, tokenizer, prompts, alone.as_json(), request.max_tokens, request.sampled
    )


def _longest_prompt(request: TrainRequest, engine: ResolvedEngine) -> int:
    most = min(engine.max_input_len, engine.max_seq_len - request.max_tokens)
    if most < 1:
        message = f"--max-tokens {request.max_tokens} leaves no room for a prompt in {engine.max_seq_len} tokens"
        raise TrtspecError(message, hint="engine.max_seq_len limits the sum of prompt and response")
    return most


def measure_draft(when: str, build: Build, answers: AnswerPrompts) -> MeasureDraft:
    """Return the step that measures a build's draft on the held-out texts."""
    target, *draft = _converted(build)
    settings = replace(EngineSettings.from_recipe(build.recipe), schedule=())
    return MeasureDraft(when, target, tuple(draft), answers, settings.as_json())


def train_here(request: TrainRequest, build: Build, answers: AnswerPrompts) -> TrainDraft:
    """Return the step that trains a build's draft on this machine, on the target's responses."""
    files, method = source_files(build.context.sources["draft"]), build.recipe.speculation.method
    return TrainDraft(answers.target, files, answers, method, build.context.draft_shape.max_depth, request.settings)


def _converted(build: Build) -> list[ConvertCheckpoint]:
    steps = [build.artifact.steps.get(checkpoint(role)) for role in ("target", "draft")]
    return [step for step in steps if isinstance(step, ConvertCheckpoint)]


def file_reader() -> FileReader:
    return FileReader(open_store().digests)


def source_files(source: Source) -> Files:
    return file_reader().read(source.root, source.files)


def _file(reader: FileReader, path: Path) -> Files:
    found = read_prompts(path).path  # also finds shipped prompt sets
    return reader.read(found.absolute().parent, [found.absolute()])


def require_target(context: PlanContext) -> SourceModel:
    if context.target is None:
        raise ValueError("the engine of this process supports only targets of known families")
    return context.target


TrainingStep = Callable[[TrainRequest, Build, AnswerPrompts], Step]


def run(request: TrainRequest, watching: ProgressFactory) -> TrainResult:
    """Train the recipe's draft, and publish it if it is better; raise TrtspecError if that is not possible."""
    loaded = load_for_training(request, extension_names("trtspec.methods", "training"))
    if loaded.recipe.speculation.draft is None:
        return _from_scratch(request, loaded, watching)
    check_no_sizes(request)
    return train_and_evaluate(request, loaded, watching, train_here)


def train_and_evaluate(
    request: TrainRequest, loaded: LoadedRecipe, watching: ProgressFactory, training: TrainingStep
) -> TrainResult:
    """Evaluate the result of the `training` step on the recipe's draft, and publish it if it is better.

    Raises TrtspecError if the draft's vocabulary differs from the target's.
    """
    out = _output_dir(request, loaded)
    build = plan_recipe(loaded, watching)
    if build.context.translates:
        message = "the draft's vocabulary differs from the target's, whose tokens it is trained on"
        raise TrtspecError(message, where=str(request.recipe), hint="train a draft with the target's tokenizer")
    answers = answer_step(request, build)
    steps = [answers, answers.prompts, measure_draft("before", build, answers), training(request, build, answers)]
    answered, split, measured, trained = run_steps(steps, build, watching)
    better = build_with(request, trained)
    (again,) = run_steps([measure_draft("after", better, answers)], better, watching)
    comparison = DraftComparison.of(read_held_out(answered), read_counts(measured), read_counts(again))
    return _result(loaded, build, out, (answered, split, trained), comparison)


def _output_dir(request: TrainRequest, loaded: LoadedRecipe) -> Path:
    out = request.out or Path("drafts") / loaded.recipe.name
    check_draft_path(out)
    return out


def _result(
    loaded: LoadedRecipe, build: Build, out: Path, outputs: tuple[Path, Path, Path], comparison: DraftComparison
) -> TrainResult:
    """Return the result of a training, and publish the draft if it is better.

    `outputs` are the directories of the responses, of the split prompts and of the trained draft.
    """
    answered, split, trained = outputs
    recipe, planned, texts = loaded.recipe, build.recipe.without_directories(), read_texts(answered / TEXTS)
    steps = ((step.name, step.key) for step in build.plan.steps)
    found = TrainResult(
        recipe.name,
        recipe.speculation.method,
        out,
        trained,
        comparison,
        json.loads((trained / RECORD).read_text()),
        read_num_skipped(split),
        from_scratch=recipe.speculation.draft is None,
        prompt_digests=sorted({prompt_digest(text.prompt) for text in texts if text.side != HELD_OUT}),
        target={"model": planned.target.model, "sha256": planned_target_sha256(planned, build.target_key, steps)},
    )
    if found.published:
        publish(found)
    return found


def _from_scratch(request: TrainRequest, loaded: LoadedRecipe, watching: ProgressFactory) -> TrainResult:
    """Create a draft for the recipe's method, train it and evaluate it."""
    _check_makes(request, loaded)
    out = _output_dir(request, loaded)
    bare = plan_recipe(
        replace(loaded, recipe=loaded.recipe.model_copy(update={"speculation": Speculation()})), watching
    )
    answers = answer_step(request, bare)
    speculation, files = loaded.recipe.speculation, source_files(bare.context.sources["target"])
    method = find_method(speculation.method)
    depth = method.shape_for(method.parse(speculation.options), speculation.draft_len).max_depth
    making = MakeDraft(files, answers, speculation.method, depth, request.sizes, request.settings.seed)
    answered, split, made = run_steps([answers, answers.prompts, making], bare, watching)
    build = build_with(request, made)
    train = train_here(replace(request, settings=replace(request.settings, from_scratch=True)), build, answers)
    (trained,) = run_steps([train], build, watching)
    better, texts = build_with(request, trained), read_held_out(answered)
    (measured,) = run_steps([measure_draft("after", better, answers)], better, watching)
    alone = [StepCounts(len(text.answer) - 1, 0, 0) for text in texts]  # one for each token but the first
    comparison = DraftComparison.of(texts, alone, read_counts(measured), step_cost(better.context))
    return _result(loaded, bare, out, (answered, split, trained), comparison)


def _check_makes(request: TrainRequest, loaded: LoadedRecipe) -> None:
    """Raise TrtspecError for sizes and training options that the method's new drafts do not support."""
    if request.settings.lora:
        message = "--lora does not change a draft's weights, which are random in a draft from scratch"
        raise TrtspecError(message, where=str(request.recipe), hint="remove it, or name a draft")
    from trtspec.training.trainable import find_trainable  # imports torch, which checks do not need

    method = loaded.recipe.speculation.method
    find_trainable(method).check_sizes(method, request.sizes)
