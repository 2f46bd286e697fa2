# SPDX-License-Identifier: Apache-2.0
"""How long texts may be and over how many GPUs the target is divided, by the backend's own plan of the memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from trtspec.backends.base import Backend
from trtspec.backends.common.memory import MemoryPlan
from trtspec.backends.context import PlanContext
from trtspec.checkpoints.model_config import ModelConfig
from trtspec.checkpoints.source_model import mapping_of, scheme_wanted
from trtspec.planning.init.hardware import Machine
from trtspec.recipe.schema import Parallel

RANKS = (1, 2, 4, 8)
USUAL_LEN, SHORT_LEN = 8192, 1024


@dataclass(frozen=True)
class TextLen:
    """The longest text in tokens, and why it is that."""

    tokens: int
    why: str


@dataclass(frozen=True)
class Fit:
    """What serving is divided into: GPUs for the target, the longest text in tokens, the plan of the fullest device.

    `fullest` is None where no device's memory is known; `holds` tells whether everything fits. `longest` is the length
    that was tried first.
    """

    tensor: int
    max_seq_len: int
    fullest: MemoryPlan | None
    holds: bool
    longest: int

    @property
    def why(self) -> str:
        """Return what the fullest device holds, in words; "" where that is unknown."""
        if self.fullest is None:
            return ""
        taken, limit = (count / 2**30 for count in (self.fullest.total_bytes, self.fullest.limit_bytes))
        return f"{taken:.1f} of {limit:.1f} GiB are taken" + ("" if self.holds else ": more than there is")


def text_len(backend: Backend, target: ModelConfig | None, draft: ModelConfig | None) -> TextLen:
    """Return the longest text that both models have positions for, at most a usual length."""
    if target is None:
        return TextLen(2048, "the default: nothing is known of the target's positions")
    found = [TextLen(_positions(backend, target), "all that the target has positions for")]
    if draft:
        found.append(TextLen(_positions(backend, draft), "all that the draft has positions for"))
    found.append(TextLen(USUAL_LEN, "longer texts take more memory: raise it where there are some"))
    return min(found, key=lambda each: each.tokens)


def _positions(backend: Backend, config: ModelConfig) -> int:
    return min(backend.positions(config), config.max_positions)


def fit(context: PlanContext, backend: Backend, machine: Machine) -> Fit:
    """Return the fewest GPUs that hold the longest text, a shorter text where no number of them does.

    Where nothing holds, it is the longest text on the most GPUs.
    """
    longest, ranks = context.recipe.engine.max_seq_len, _ranks(context, backend, machine)
    tries = (_try(context, backend, tensor, tokens) for tokens in _lengths(longest) for tensor in ranks)
    holding = next((tried for tried in tries if tried.holds), None)
    return holding or _try(context, backend, ranks[-1], longest)


def _lengths(longest: int) -> Iterator[int]:
    """Yield the length, and half of it again and again as long as that is of use."""
    yield longest
    while longest // 2 >= SHORT_LEN:
        longest //= 2
        yield longest


def _ranks(context: PlanContext, backend: Backend, machine: Machine) -> list[int]:
    """Return over how many GPUs the target can be divided."""
    if machine.gpu is None or backend.in_process:
        return [1]
    return [count for count in RANKS if count <= machine.count and _divides(context, backend, count)]


def _divides(context: PlanContext, backend: Backend, tensor: int) -> bool:
    asked = _divided(context, tensor).recipe.target
    found = []
    if context.target:
        found += context.target.diagnose(scheme_wanted(asked), mapping_of(asked), converts=backend.converts)
    if context.head:
        found += context.head.diagnose(mapping_of(asked))
    return not any(each.severity == "error" and each.path.endswith("parallel") for each in found)


def _divided(context: PlanContext, tensor: int) -> PlanContext:
    target = context.recipe.target.model_copy(update={"parallel": Parallel(tensor=tensor)})
    return replace(context, recipe=context.recipe.model_copy(update={"target": target}))


def _try(context: PlanContext, backend: Backend, tensor: int, tokens: int) -> Fit:
    divided = _divided(context, tensor)
    engine = divided.recipe.engine.model_copy(update={"max_seq_len": tokens, "max_input_len": max(1, tokens // 2)})
    plans = backend.memory(replace(divided, recipe=divided.recipe.model_copy(update={"engine": engine})))
    known = [plan for plan in plans if plan.limit_bytes]
    fullest = max(known, key=lambda plan: plan.total_bytes / plan.limit_bytes, default=None)
    holds = fullest is None or fullest.total_bytes <= fullest.limit_bytes
    return Fit(tensor, tokens, fullest, holds, context.recipe.engine.max_seq_len)
