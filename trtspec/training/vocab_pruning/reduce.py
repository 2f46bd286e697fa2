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
from trtspec.training.measure_draft import held_out_of, read_counts
from trtspec.training.plan import Asked, answers_of, build_with, files_of, load_asked, measure_draft
from trtspec.training.progress import Watching, outputs_of, plan_of
from trtspec.training.verdict import Verdict, side_of
from trtspec.training.vocab_pruning.reduce_draft import METHODS, ReduceDraft

FORMAT_VERSION = 1


@dataclass(frozen=True)
class Reduced:
    """A net with a draft vocabulary of `left` tokens, its path, and the change on the held-out texts.

    `costs` are the costs of a step before and after, in steps of the target alone.
    """

    name: str
    out: Path
    left: int
    verdict: Verdict
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
            **{word: side_of(side) | {"step_cost": round(cost, 4)} for word, side, cost in sides},
            "change": whole.change.as_list(),
            "kinds": [each.as_dict() for each in self.verdict.kinds],
        }


def reduce(asked: Asked, left: int, out: Path, watching: Watching) -> Reduced:
    """Prune a recipe's net to `left` draft tokens, and write it to `out`; TrtspecError for other methods."""
    loaded = load_asked(asked)
    speculation = loaded.recipe.speculation
    if speculation.draft is None or speculation.method not in METHODS:
        message = f"method {speculation.method} has no prunable vocabulary; supported methods: {', '.join(METHODS)}"
        raise TrtspecError(message, where=str(asked.recipe), hint="choose another recipe")
    build = plan_of(loaded, watching)
    answers = answers_of(asked, build)
    target, source = (files_of(build.context.sources[role]) for role in ("target", "draft"))
    reduction = ReduceDraft(target, source, answers, speculation.method, left)
    steps = [answers, measure_draft("before", build, answers), reduction]
    answered, before, reduced = outputs_of(steps, build, watching)
    fewer = build_with(asked, reduced)
    (after,) = outputs_of([measure_draft("after", fewer, answers)], fewer, watching)
    verdict = Verdict.of(held_out_of(answered), read_counts(before), read_counts(after))
    _write(reduced, out)
    return Reduced(loaded.recipe.name, out, left, verdict, (step_cost(build.context), step_cost(fewer.context)))


def _write(reduced: Path, out: Path) -> None:
    with new_directory(out) as temporary:
        for path in reduced.iterdir():
            shutil.copyfile(path, temporary / path.name)
