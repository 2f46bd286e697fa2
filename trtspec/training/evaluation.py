# SPDX-License-Identifier: Apache-2.0
"""Evaluation of a trained draft on every kind of prompt: comparison with the previous draft, decision, publication.

Confidence intervals decide if the trained draft may replace the previous one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from trtspec.bench.profile.acceptance import AcceptanceStats, Estimate, StepCounts, acceptance_change
from trtspec.bench.sources import DIGESTS, RECORD
from trtspec.core.errors import TrtspecError
from trtspec.core.files import (
    copy_tree,
    exclusive_writer,
    fsync_path,
    remove_leftovers,
    replace_directory,
    sync_directories,
    temporary_sibling,
)
from trtspec.training.texts import TrainingText

FORMAT_VERSION, KIND = 1, "train"
MIN_EVAL_PROMPTS = 6  # texts; with fewer, all gain by chance with a probability above 2 ** -6
MOST_LOSS = 0.02  # of the mean accepted length of a regression kind, regardless of its interval


@dataclass(frozen=True)
class AcceptanceComparison:
    """Acceptance on the same texts before and after training; `kept` is set for regression prompts."""

    kind: str
    kept: bool
    before: AcceptanceStats
    after: AcceptanceStats

    @classmethod
    def of(cls, kind: str, kept: bool, pairs: Sequence[tuple[StepCounts, StepCounts]]) -> AcceptanceComparison:
        before, after = (AcceptanceStats(tuple(side), (kind,) * len(pairs)) for side in zip(*pairs, strict=True))
        return cls(kind, kept, before, after)

    @cached_property
    def change(self) -> Estimate:
        return acceptance_change(self.before.texts, self.after.texts)

    @property
    def share(self) -> float:
        return self.change.value / self.before.token_weighted.value

    @property
    def is_better(self) -> bool:
        """Return whether the confidence interval of the change is above 0 and is based on enough texts."""
        return self.change.low > 0 and self._has_enough_texts

    @property
    def is_worse(self) -> bool:
        """Return whether the confidence interval of the change is below 0, or a regression kind lost too much.

        With few texts the interval may be a single point, which counts only if the loss is large.
        """
        loses_much = self.share < -MOST_LOSS
        return (self.change.high < 0 and (self._has_enough_texts or loses_much)) or (self.kept and loses_much)

    @property
    def _has_enough_texts(self) -> bool:
        return len(self.before.texts) >= MIN_EVAL_PROMPTS

    @property
    def label(self) -> str:
        return "worse" if self.is_worse else "better" if self.is_better else "as before"

    def as_dict(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "kept": self.kept,
            "prompts": len(self.before.texts),
            **self.sides(),
            "verdict": self.label,
        }

    def sides(self) -> dict[str, Any]:
        """Return the JSON document's keys "before", "after" and "change"."""
        before, after = map(_describe_acceptance, (self.before, self.after))
        return {"before": before, "after": after, "change": self.change.as_list()}


def _describe_acceptance(found: AcceptanceStats) -> dict[str, Any]:
    value, low, high = found.token_weighted.as_list()
    return {
        "mean_accepted_len": value,
        "interval": [low, high],
        "acceptance_rate": round(found.rate, 4),
        "by_position": [round(rate, 4) for rate in found.by_position],
    }


@dataclass(frozen=True)
class DraftComparison:
    """Comparison of two drafts: on all prompts of the new traffic, and on each kind, including regression prompts.

    `step_cost` is the minimum cost of a step that drafts, in steps of the target alone; 0 to ignore it.
    """

    whole: AcceptanceComparison
    kinds: tuple[AcceptanceComparison, ...]
    step_cost: float = 0.0

    @classmethod
    def of(
        cls,
        texts: Sequence[TrainingText],
        before: Sequence[StepCounts],
        after: Sequence[StepCounts],
        step_cost: float = 0.0,
    ) -> DraftComparison:
        pairs = list(zip(texts, zip(before, after, strict=True), strict=True))
        kinds = sorted({(text.kept, text.label) for text in texts})
        whole = AcceptanceComparison.of("all", False, [pair for text, pair in pairs if not text.kept])
        by_kind = (
            AcceptanceComparison.of(label, kept, [pair for text, pair in pairs if text.label == label])
            for kept, label in kinds
        )
        return cls(whole, tuple(by_kind), step_cost)

    @property
    def rejections(self) -> list[str]:
        """Return the reasons against publishing the draft, if any."""
        found = [f"{each.kind}: {each.change} tokens per step" for each in self.kinds if each.is_worse]
        if not self.whole.is_better:
            found.append(f"all held-out prompts gain {self.whole.change} tokens per step, which may be chance")
        if (gain := self.whole.after.token_weighted).low < self.step_cost:
            found.append(f"a step yields {gain} tokens but costs {self.step_cost:.2f} steps of the target alone")
        return found

    def as_dict(self) -> dict[str, Any]:
        return {**self.whole.sides(), "kinds": [each.as_dict() for each in self.kinds]}


@dataclass(frozen=True)
class TrainResult:
    """Result of a training: the draft at `trained`, its destination `out`, and its comparison with the previous one.

    A draft `from_scratch` is compared with the target alone, whose steps yield one token each. `record` describes the
    training run, `left_out` counts prompts that were too long, and `prompt_digests` covers the prompts used for
    training or validation. `target` is the model and its digest.
    """

    name: str
    method: str
    out: Path
    trained: Path
    comparison: DraftComparison
    record: Mapping[str, Any]
    left_out: int
    from_scratch: bool = False
    prompt_digests: Sequence[str] = ()
    target: Mapping[str, str] = field(default_factory=dict)

    @property
    def published(self) -> bool:
        """Return whether the draft is better overall and not worse on any kind."""
        return not self.comparison.rejections

    def as_dict(self) -> dict[str, Any]:
        return {
            "format_version": FORMAT_VERSION,
            "kind": KIND,
            "target": dict(self.target) or None,
            "name": self.name,
            "method": self.method,
            "from_scratch": self.from_scratch,
            "published": self.published,
            "prompts_left_out": self.left_out,
            "prompts_trained_on": len(self.prompt_digests),
            "draft": str(self.out) if self.published else None,
            "refusals": self.comparison.rejections,
            **self.comparison.as_dict(),
            "training": dict(self.record),
        }


def check_draft_path(out: Path) -> None:
    """Raise TrtspecError if `out` exists and is not a trained draft, or cannot be written."""
    if out.exists() and not (out / RECORD).is_file():
        raise TrtspecError("not a trained draft; refusing to overwrite", where=str(out), hint="choose another --out")
    above = next(each for each in Path(os.path.abspath(out)).parents if each.exists())
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        raise TrtspecError(f"{above} is not a writable directory", where=str(out), hint="choose another --out")


def publish(found: TrainResult) -> None:
    """Publish the draft atomically, replacing an earlier one."""
    out = Path(os.path.abspath(found.out))
    with exclusive_writer(out):
        new = temporary_sibling(out, "tmp")
        try:
            copy_tree(found.trained, new)
            record = found.as_dict() | {DIGESTS: list(found.prompt_digests)}
            (new / RECORD).write_text(json.dumps(record, indent=2) + "\n")
            for path in new.iterdir():
                path.chmod(0o644)
                fsync_path(path)
            sync_directories(new)
            replace_directory(new, out)
        finally:
            remove_leftovers(out)
