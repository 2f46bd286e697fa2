# SPDX-License-Identifier: Apache-2.0
"""Prune the draft vocabulary of a recipe's net, and measure the acceptance before and after.

split -> generate responses -> measure before, prune -> convert the result -> measure after
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtspec.checkpoints.writer import new_directory
from trtspec.core.errors import TrtspecError
from trtspec.planning.prediction.predict import step_cost
from trtspec.training.measure_draft import read_counts, read_held_out
from trtspec.training.plan import (
    TrainRequest,
    answer_step,
    build_with,
    load_requested_recipe,
    measure_draft,
    source_files,
)
from trtspec.training.progress import ProgressFactory, plan_recipe, run_steps
from trtspec.training.verdict import TrainingVerdict, describe_acceptance
from trtspec.training.vocab_pruning.reduce_draft import METHODS, ReduceDraft

FORMAT_VERSION = 1


@dataclass(frozen=True)
class PruningResult:
    """A net with a draft vocabulary of `left` tokens, its path, and the change on the held-out texts.

    `costs` are the costs of a step before and after, in steps of the target alone.
    """

    name: str
    out: Path
    left: int
    verdict: TrainingVerdict
    costs: tuple[float, float]

    def as_dict(self) -> dict[str, Any]:
        """Return the document of `prune --vocab --json`."""
        whole = self.verdict.whole
        sides = zip(("before", "after"), (whole.before, whole.after), self.costs, strict=True)
        return {
            "format_version": FORMAT_VERSION,
            "name": self.name,
            "draft": str(self.out),
            "draft_vocab_size": self.left,
            **{word: describe_acceptance(side) | {"step_cost": round(cost, 4)} for word, side, cost in sides},
            "change": whole.change.as_list(),
            "kinds": [each.as_dict() for each in self.verdict.kinds],
        }


def prune_vocabulary(asked: TrainRequest, left: int, out: Path, watching: ProgressFactory) -> PruningResult:
    """Prune a recipe's net to `left` draft tokens, and write it to `out`; TrtspecError for other methods."""
    loaded = load_requested_recipe(asked)
    speculation = loaded.recipe.speculation
    if speculation.draft is None or speculation.method not in METHODS:
        message = f"method {speculation.method} has no prunable vocabulary; supported methods: {', '.join(METHODS)}"
        raise TrtspecError(message, where=str(asked.recipe), hint="choose another recipe")
    build = plan_recipe(loaded, watching)
    answers = answer_step(asked, build)
    target, source = (source_files(build.context.sources[role]) for role in ("target", "draft"))
    reduction = ReduceDraft(target, source, answers, speculation.method, left)
    steps = [answers, measure_draft("before", build, answers), reduction]
    answered, before, reduced = run_steps(steps, build, watching)
    fewer = build_with(asked, reduced)
    (after,) = run_steps([measure_draft("after", fewer, answers)], fewer, watching)
    verdict = TrainingVerdict.of(read_held_out(answered), read_counts(before), read_counts(after))
    _write(reduced, out)
    return PruningResult(loaded.recipe.name, out, left, verdict, (step_cost(build.context), step_cost(fewer.context)))


def _write(reduced: Path, out: Path) -> None:
    with new_directory(out) as temporary:
        for path in reduced.iterdir():
            shutil.copyfile(path, temporary / path.name)
