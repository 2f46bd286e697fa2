# SPDX-License-Identifier: Apache-2.0
"""Train and evaluate a recipe's draft on prompts; the only module here that defines the order of steps.

split -> generate responses -> measure before, train (here, or import an external result) -> convert the result
-> measure after -> compare -> publish

If the recipe names no draft, one is created after the responses, and the baseline is the target alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from trtspec.bench.documents import planned_target_sha256
from trtspec.bench.profile.acceptance import StepCounts
from trtspec.bench.sources import RECORD, prompt_digest
from trtspec.core.errors import TrtspecError
from trtspec.core.registry import extension_names
from trtspec.methods.base import find_method
from trtspec.planning.pipeline import Build
from trtspec.planning.prediction.predict import step_cost
from trtspec.recipe.load import LoadedRecipe
from trtspec.recipe.schema import Speculation
from trtspec.store.step import Step
from trtspec.training.answer_prompts import AnswerPrompts
from trtspec.training.draft_steps import MakeDraft, read_counts, read_held_out
from trtspec.training.evaluation import DraftComparison, TrainResult, check_draft_path, publish
from trtspec.training.plan import (
    ProgressFactory,
    TrainRequest,
    answer_step,
    build_with,
    check_no_sizes,
    load_for_training,
    measure_draft,
    plan_recipe,
    run_steps,
    source_files,
    train_here,
)
from trtspec.training.split_prompts import read_num_skipped
from trtspec.training.texts import HELD_OUT, TEXTS, read_texts

TrainingStep = Callable[[TrainRequest, Build, AnswerPrompts], Step]


def run(request: TrainRequest, watching: ProgressFactory) -> TrainResult:
    """Train the recipe's draft, and publish it if it is better; TrtspecError if that is not possible."""
    loaded = load_for_training(request, extension_names("trtspec.methods", "training"))
    if loaded.recipe.speculation.draft is None:
        return _from_scratch(request, loaded, watching)
    check_no_sizes(request)
    return train_and_evaluate(request, loaded, watching, train_here)


def train_and_evaluate(
    request: TrainRequest, loaded: LoadedRecipe, watching: ProgressFactory, training: TrainingStep
) -> TrainResult:
    """Evaluate the result of the `training` step on the recipe's draft, and publish it if it is better."""
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
    recipe = loaded.recipe
    found = TrainResult(
        recipe.name,
        recipe.speculation.method,
        out,
        trained,
        comparison,
        json.loads((trained / RECORD).read_text()),
        read_num_skipped(split),
        from_scratch=recipe.speculation.draft is None,
        prompt_digests=_prompts(answered),
        target=_target(build),
    )
    if found.published:
        publish(found)
    return found


def _from_scratch(request: TrainRequest, loaded: LoadedRecipe, watching: ProgressFactory) -> TrainResult:
    """Create a draft of the recipe's method, train it and evaluate it."""
    _check_makes(request, loaded)
    out = _output_dir(request, loaded)
    bare = plan_recipe(
        replace(loaded, recipe=loaded.recipe.model_copy(update={"speculation": Speculation()})), watching
    )
    answers = answer_step(request, bare)
    making = _make_step(request, loaded.recipe.speculation, bare, answers)
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
    """Raise TrtspecError for sizes and training options that the method's draft does not support."""
    if request.settings.lora:
        message = "--lora does not change a draft's weights, which are random in a draft from scratch"
        raise TrtspecError(message, where=str(request.recipe), hint="remove it, or name a draft")
    from trtspec.training.trainable import find_trainable  # imports torch, which checks do not need

    method = loaded.recipe.speculation.method
    find_trainable(method).check_sizes(method, request.sizes)


def _make_step(request: TrainRequest, speculation: Speculation, bare: Build, answers: AnswerPrompts) -> MakeDraft:
    method = find_method(speculation.method)
    depth = method.shape_for(method.parse(speculation.options), speculation.draft_len).max_depth
    files = source_files(bare.context.sources["target"])
    return MakeDraft(files, answers, speculation.method, depth, request.sizes, request.settings.seed)


def _prompts(answered: Path) -> list[str]:
    """Return the unique digests of the prompts used for training or validation."""
    texts = read_texts(answered / TEXTS)
    return sorted({prompt_digest(text.prompt) for text in texts if text.side != HELD_OUT})


def _target(build: Build) -> dict[str, str]:
    """Return the target's entry in documents."""
    recipe = build.recipe.without_directories()
    steps = ((step.name, step.key) for step in build.plan.steps)
    return {"model": recipe.target.model, "sha256": planned_target_sha256(recipe, build.target_key, steps)}
