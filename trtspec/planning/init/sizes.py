# SPDX-License-Identifier: Apache-2.0
"""Choose the maximum text length and the number of GPUs for the target, with the backend's memory plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from trtspec.backends.base import Backend
from trtspec.backends.common.memory import MemoryPlan
from trtspec.backends.context import PlanContext
from trtspec.checkpoints.model_config import ModelConfig
from trtspec.checkpoints.source_model import parallel_mapping, requested_scheme
from trtspec.planning.init.hardware import InitHardware
from trtspec.recipe.schema import Parallel

RANKS = (1, 2, 4, 8)
USUAL_LEN, SHORT_LEN = 8192, 1024


@dataclass(frozen=True)
class TextLen:
    """The maximum tokens of a text, and the reason."""

    tokens: int
    why: str


@dataclass(frozen=True)
class Fit:
    """GPUs for the target, maximum tokens of a text, and the memory plan of the fullest device.

    `fullest` is None if no device's memory is known. `holds` is True if everything fits. `longest` is the length that
    was tried first.
    """

    tensor: int
    max_seq_len: int
    fullest: MemoryPlan | None
    holds: bool
    longest: int

    @property
    def why(self) -> str:
        """Return a message with the memory of the fullest device; "" if unknown."""
        if self.fullest is None:
            return ""
        taken, limit = (count / 2**30 for count in (self.fullest.total_bytes, self.fullest.limit_bytes))
        return f"{taken:.1f} of {limit:.1f} GiB used" + ("" if self.holds else ": too much")


def text_len(backend: Backend, target: ModelConfig | None, draft: ModelConfig | None) -> TextLen:
    """Return the longest text that fits both models' positions, at most the usual length."""
    if target is None:
        return TextLen(2048, "the default: the target's positions are unknown")
    found = [TextLen(_positions(backend, target), "the target's maximum positions")]
    if draft:
        found.append(TextLen(_positions(backend, draft), "the draft's maximum positions"))
    found.append(TextLen(USUAL_LEN, "longer texts take more memory: raise it if needed"))
    return min(found, key=lambda each: each.tokens)


def _positions(backend: Backend, config: ModelConfig) -> int:
    return min(backend.positions(config), config.max_positions)


def fit(context: PlanContext, backend: Backend, machine: InitHardware) -> Fit:
    """Return the fewest GPUs that hold the longest text; shorter texts are tried if no number of GPUs does.

    If nothing fits, return the longest text on the most GPUs.
    """
    longest, ranks = context.recipe.engine.max_seq_len, _ranks(context, backend, machine)
    tries = (_try(context, backend, tensor, tokens) for tokens in _lengths(longest) for tensor in ranks)
    holding = next((tried for tried in tries if tried.holds), None)
    return holding or _try(context, backend, ranks[-1], longest)


def _lengths(longest: int) -> Iterator[int]:
    """Yield the length and its successive halves down to SHORT_LEN."""
    yield longest
    while longest // 2 >= SHORT_LEN:
        longest //= 2
        yield longest


def _ranks(context: PlanContext, backend: Backend, machine: InitHardware) -> list[int]:
    """Return the numbers of GPUs that the target can be distributed over."""
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
    engine = divided.recipe.engine.model_copy(update={"max_seq_len": tokens, "max_input_len": max(1, tokens // 2)})
    plans = backend.memory(replace(divided, recipe=divided.recipe.model_copy(update={"engine": engine})))
    known = [plan for plan in plans if plan.limit_bytes]
    fullest = max(known, key=lambda plan: plan.total_bytes / plan.limit_bytes, default=None)
    holds = fullest is None or fullest.total_bytes <= fullest.limit_bytes
    return Fit(tensor, tokens, fullest, holds, context.recipe.engine.max_seq_len)
