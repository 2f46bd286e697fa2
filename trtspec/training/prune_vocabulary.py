# SPDX-License-Identifier: Apache-2.0
"""Prune the vocabulary of a recipe's draft, and measure the acceptance before and after.

split -> generate responses -> measure before, prune -> convert the result -> measure after
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from trtspec.checkpoints.source import Source
from trtspec.checkpoints.source_model import load_model
from trtspec.checkpoints.writer import new_directory, write_config, write_tensors
from trtspec.core.errors import CheckpointError, TrtspecError
from trtspec.methods.base import VocabularyNames, methods
from trtspec.planning.prediction.predict import step_cost
from trtspec.store.files import Files
from trtspec.store.step import Inputs, Step, StepProgress
from trtspec.training.draft_steps import AnswerPrompts, read_counts, read_held_out
from trtspec.training.evaluation import DraftComparison
from trtspec.training.plan import (
    ProgressFactory,
    TrainRequest,
    answer_step,
    build_with,
    load_requested_recipe,
    measure_draft,
    plan_recipe,
    run_steps,
    source_files,
)
from trtspec.training.texts import HELD_OUT, TEXTS, read_texts

FORMAT_VERSION = 1


@dataclass(frozen=True)
class ReduceDraft(Step):
    """Step that writes the draft in `source` with only `count` of its draft tokens; `target` is its target model.

    Held-out texts do not influence the choice of tokens.
    """

    VERSION: ClassVar[int] = 1

    target: Files
    source: Files
    texts: AnswerPrompts
    method: str
    count: int

    def run(self, out: Path, inputs: Inputs, progress: StepProgress) -> None:
        """Write the reduced draft; raise CheckpointError unless the source drafts more than `count` tokens."""
        from trtspec.training.tensors import ReducedNet, most_frequent  # imports torch

        texts = [text for text in read_texts(inputs[self.texts] / TEXTS) if text.side != HELD_OUT]
        with self.source.unchanged(), self.target.unchanged():
            find_names = _able_methods()[self.method]
            net = ReducedNet(self.source.root, load_model(self.target.root, "auto"), find_names)
            if self.count >= len(net.drafted):
                message = f"drafts {len(net.drafted)} tokens, not more than the requested {self.count}"
                raise CheckpointError(message, where=str(self.source.root), hint="request fewer")
            ids = most_frequent(self.count, texts, net.drafted)
            write_config(out, net.config(ids))
            write_tensors(out / "model.safetensors", net.parts(ids))


def _able_methods() -> dict[str, Callable[[Source], VocabularyNames]]:
    """Return, by method, the `vocabulary_names` function of methods whose heads may have their own vocabulary."""
    return {name: method.vocabulary_names for name, method in methods().items() if method.vocabulary_names}


@dataclass(frozen=True)
class PruningResult:
    """A draft with a vocabulary of `left` tokens, its path, and the change on the held-out texts.

    `costs` are the costs of a step before and after, in steps of the target alone.
    """

    name: str
    out: Path
    left: int
    comparison: DraftComparison
    costs: tuple[float, float]

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON document of `trtspec prune-vocab --json`."""
        found = self.comparison.as_dict()
        for side, cost in zip(("before", "after"), self.costs, strict=True):
            found[side]["step_cost"] = round(cost, 4)
        return {
            "format_version": FORMAT_VERSION,
            "name": self.name,
            "draft": str(self.out),
            "draft_vocab_size": self.left,
            **found,
        }


def prune_vocabulary(request: TrainRequest, left: int, out: Path, watching: ProgressFactory) -> PruningResult:
    """Prune the vocabulary of a recipe's draft to `left` tokens, and write the draft to `out`.

    Raises TrtspecError for methods whose drafts cannot be pruned.
    """
    loaded = load_requested_recipe(request)
    speculation = loaded.recipe.speculation
    if speculation.draft is None or speculation.method not in (able := _able_methods()):
        message = f"method {speculation.method} has no prunable vocabulary; supported methods: {', '.join(able)}"
        raise TrtspecError(message, where=str(request.recipe), hint="choose another recipe")
    build = plan_recipe(loaded, watching)
    answers = answer_step(request, build)
    target, source = (source_files(build.context.sources[role]) for role in ("target", "draft"))
    reduction = ReduceDraft(target, source, answers, speculation.method, left)
    steps = [answers, measure_draft("before", build, answers), reduction]
    answered, before, reduced = run_steps(steps, build, watching)
    fewer = build_with(request, reduced)
    (after,) = run_steps([measure_draft("after", fewer, answers)], fewer, watching)
    comparison = DraftComparison.of(read_held_out(answered), read_counts(before), read_counts(after))
    with new_directory(out) as temporary:
        for path in reduced.iterdir():
            shutil.copyfile(path, temporary / path.name)
    costs = step_cost(build.context), step_cost(fewer.context)
    return PruningResult(loaded.recipe.name, out, left, comparison, costs)
