# SPDX-License-Identifier: Apache-2.0
"""From a recipe and prompts to a judged draft: the only module here that knows the order of steps.

split -> answer -> measure before, train -> convert what was trained -> measure after -> judge -> publish

Where the recipe names no draft, one is made after the answers, and the target alone is what there was before.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from trtspec.errors import TrtspecError
from trtspec.measure.profile.acceptance import Counts
from trtspec.methods.base import find_method
from trtspec.pipeline import Build
from trtspec.recipe.load import LoadedRecipe
from trtspec.recipe.schema import Speculation
from trtspec.registry import names
from trtspec.training.answer_prompts import AnswerPrompts
from trtspec.training.make_draft import MakeDraft
from trtspec.training.measure_draft import held_out_of, read_counts
from trtspec.training.plans import Asked, answers_of, build_with, files_of, load_for_training, measure_draft, train_here
from trtspec.training.result import Result, check_place, publish
from trtspec.training.runs import Watching, outputs_of, plan_of
from trtspec.training.texts import Text
from trtspec.training.train_draft import RECORD
from trtspec.training.verdict import Verdict
from trtspec.training.worth import step_cost


def run(asked: Asked, watching: Watching) -> Result:
    """Train the recipe's draft, and publish it where it is better; raises TrtspecError for what cannot be done."""
    loaded = load_for_training(asked, names("trtspec.training.drafts"))
    out = asked.out or Path("drafts") / loaded.recipe.name
    check_place(out)
    if loaded.recipe.speculation.draft is None:
        found = _from_scratch(asked, loaded, out, watching)
    else:
        found = _adapted(asked, loaded, out, watching)
    if found.published:
        publish(found)
    return found


def _adapted(asked: Asked, loaded: LoadedRecipe, out: Path, watching: Watching) -> Result:
    """Train the draft that the recipe names."""
    if any(vars(asked.sizes).values()):
        message, hint = "the recipe names a draft, whose sizes are what they are", "leave the sizes out, or the draft"
        raise TrtspecError(message, where=str(asked.recipe), hint=hint)
    build = plan_of(loaded, watching)
    answers = answers_of(asked, build)
    before, train = measure_draft("before", build, answers), train_here(asked, build, answers)
    answered, measured, trained = outputs_of([answers, before, train], build, watching)
    better = build_with(asked, trained)
    (again,) = outputs_of([measure_draft("after", better, answers)], better, watching)
    verdict = Verdict.of(held_out_of(answered), read_counts(measured), read_counts(again))
    return Result(loaded.recipe.name, train.method, out, trained, verdict, _record(trained))


def _from_scratch(asked: Asked, loaded: LoadedRecipe, out: Path, watching: Watching) -> Result:
    """Make a draft of the recipe's method, and train it."""
    _check_makes(asked, loaded)
    bare = plan_of(replace(loaded, recipe=loaded.recipe.model_copy(update={"speculation": Speculation()})), watching)
    answers = answers_of(asked, bare)
    answered, made = outputs_of([answers, _making(asked, loaded.recipe.speculation, bare, answers)], bare, watching)
    build = build_with(asked, made)
    train = train_here(replace(asked, settings=replace(asked.settings, from_scratch=True)), build, answers)
    (trained,) = outputs_of([train], build, watching)
    better, texts = build_with(asked, trained), held_out_of(answered)
    (measured,) = outputs_of([measure_draft("after", better, answers)], better, watching)
    alone = [steps_alone(text) for text in texts]
    verdict = Verdict.of(texts, alone, read_counts(measured), step_cost(better.context))
    return Result(loaded.recipe.name, train.method, out, trained, verdict, _record(trained), from_scratch=True)


def _check_makes(asked: Asked, loaded: LoadedRecipe) -> None:
    """Raise TrtspecError for a method whose draft is not made, and for sizes and ways of training that it has not."""
    method, able = loaded.recipe.speculation.method, names("trtspec.training.blanks")
    if asked.settings.lora:
        message = "--lora leaves a draft's weights as they are, and those of one from scratch are random"
        raise TrtspecError(message, where=str(asked.recipe), hint="leave it out, or name a draft")
    if method not in able:
        message = f"names no draft, and one of {method} is not made from scratch; of {', '.join(able)} it is"
        raise TrtspecError(message, where=str(asked.recipe), hint="name one under speculation.draft")
    from trtspec.training.blank import find_maker  # torch, which a recipe's check does without

    find_maker(method, asked.sizes)


def _making(asked: Asked, speculation: Speculation, bare: Build, answers: AnswerPrompts) -> MakeDraft:
    method = find_method(speculation.method)
    draft_len = method.default_draft_len if speculation.draft_len is None else speculation.draft_len
    depth = method.draft_shape(method.parse(speculation.options), draft_len).max_depth
    files = files_of(bare.context.sources["target"])
    return MakeDraft(files, answers, speculation.method, depth, asked.sizes, asked.settings.seed)


def steps_alone(text: Text) -> Counts:
    """Return the steps that the target takes alone: one for each token but the first."""
    return Counts(len(text.answer) - 1, 0, 0)
def _steps(asked: Asked, build: Build) -> _Steps:
    if build.context.translates:
        message = "the draft's vocabulary is not the target's, whose tokens it is trained with"
        raise TrtspecError(message, where=str(asked.recipe), hint="train a draft with the target's tokenizer")
    target, draft = _converted(build)
    source = build.context.sources["draft"]
    reader = FileReader(DigestCache(cache_dir() / "digests.json"))
    home = build.context.sources["target"]
    tokenizer = reader.read(home.root, home.tokenizer_files)
    settings = replace(EngineSettings.from_recipe(build.recipe), schedule=())
    most = min(settings.max_input_len or settings.max_seq_len, settings.max_seq_len - asked.max_tokens)
    if most < 1:
        message = f"--max-tokens {asked.max_tokens} leaves no room for a prompt in {settings.max_seq_len} tokens"
        raise TrtspecError(message, hint="engine.max_seq_len bounds prompt and answer together")
    prompts = SplitPrompts(
        tokenizer,
        _file(reader, asked.prompts),
        tuple(_file(reader, path) for path in (asked.keep,) if path),
        tuple(_file(reader, path) for path in (asked.held_out,) if path),
        most,
        asked.settings.seed,
    )
    alone = replace(settings, method="none", draft_len=0, options={})
    answers = AnswerPrompts(target, tokenizer, prompts, alone.as_json(), asked.max_tokens, asked.sampled)
    files = reader.read(source.root, source.files)
    shape = build.context.draft_shape
    train = TrainDraft(target, files, answers, build.recipe.speculation.method, shape.max_depth, asked.settings)
    return _Steps(MeasureDraft("before", target, draft, answers, settings.as_json()), train)


def _record(trained: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((trained / RECORD).read_text())
    return found
