# SPDX-License-Identifier: Apache-2.0
"""Time the torch engine's steps one by one, with drafts whose acceptance is simulated."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from trtspec.engine.drafting.base import Drafter, DrafterConfig, DraftSampling, DraftTokens
from trtspec.engine.generation.request import EngineRequest, SamplingOptions
from trtspec.engine.generation.request_state import RunningRequest
from trtspec.engine.model.decoder import Decoder
from trtspec.engine.settings import EngineSettings
from trtspec.engine.speculator import Speculator
from trtspec.kernels.chain import VerifyResult
from trtspec.kernels.verifier import DraftVerifier
from trtspec.methods.base import DraftShape, find_method

WARM_STEPS = 4
MAX_TOKENS = 8192  # per prefill


@dataclass(frozen=True)
class Load:
    """A batch's requests, with prompts of random tokens."""

    batch: int
    prompt_len: int
    sampling: SamplingOptions = field(default_factory=SamplingOptions)

    def begin(self, speculator: Speculator, new_tokens: int) -> list[RunningRequest]:
        """Return the requests after their prefill."""
        drawn, vocab = random.Random(self.batch), speculator.target.config.vocab_size
        prompts = [tuple(drawn.randrange(vocab) for _ in range(self.prompt_len)) for _ in range(self.batch)]
        rows = [
            RunningRequest(EngineRequest(prompt, new_tokens, self.sampling), lambda _: None, None) for prompt in prompts
        ]
        for row, made in zip(rows, speculator.prefill(rows, 0, MAX_TOKENS), strict=True):
            row.begin(made)
        return rows


class RandomDrafter(Drafter):
    """Drafts a chain of random tokens at almost no cost."""

    def __init__(self, setup: DrafterConfig) -> None:
        shape, made = (setup.room.rows, max(1, setup.draft_shape.max_depth)), torch.Generator().manual_seed(0)
        self._tokens = torch.randint(setup.target.config.vocab_size, shape, generator=made).to(setup.room.device)

    def propose(self, texts: Sequence[Sequence[int]], depth: int, sampling: DraftSampling | None) -> DraftTokens:
        """Return the same tokens for every step."""
        return DraftTokens(self._tokens[: len(texts), :depth])


@dataclass
class SetRules:
    """Verifies with `rules` at their full cost, then accepts each token with a fixed probability."""

    rules: DraftVerifier
    acceptance: float
    drawn: random.Random

    def chain(self, logits: Any, tokens: Any, lens: Sequence[int], *rest: Any) -> list[VerifyResult]:
        """Return verification results for chains."""
        found = self.rules.chain(logits, tokens, lens, *rest)
        return [self._decide(verdict, length) for verdict, length in zip(found, lens, strict=True)]

    def _decide(self, verdict: VerifyResult, length: int) -> VerifyResult:
        accepted = 0
        while accepted < length and self.drawn.random() < self.acceptance:
            accepted += 1
        return VerifyResult(list(range(1, accepted + 1)), verdict.token)


def chains_of(target: Decoder, drafter: Drafter, rules: Any, draft_len: int) -> Speculator:
    """Return a speculator for chains of `draft_len` tokens with a drafter and a loaded target."""
    method = find_method("none")
    shape = DraftShape(draft_len, draft_len)
    return Speculator(target, drafter, rules, shape, method, method.parse({}), EngineSettings())


def timed_steps(speculator: Speculator, load: Load, count: int) -> dict[str, Any]:
    """Return milliseconds per step, and the steps' results."""
    rows = load.begin(speculator, 10**6)
    for _ in range(WARM_STEPS):
        _step(speculator, rows)
    before, times = sum(len(row.text) for row in rows), []
    for _ in range(count):
        times.append(clocked(lambda: _step(speculator, rows), speculator.target.device))
    a_step, ms = (sum(len(row.text) for row in rows) - before) / count, statistics.median(times)
    return {
        "batch": load.batch,
        "ms": round(ms, 3),
        "least_ms": round(min(times), 3),
        "tokens_per_step": round(a_step / load.batch, 3),
        "tokens_per_s": round(1000 * a_step / ms, 1),
        "text_len": len(rows[0].text),
    }


def clocked(call: Callable[[], object], device: torch.device) -> float:
    """Return the milliseconds until a call's work on its device is complete."""
    wait(device)
    started = time.perf_counter()
    call()
    wait(device)
    return 1000 * (time.perf_counter() - started)


def least_ms(call: Callable[[], object], device: torch.device) -> float:
    """Return the minimum milliseconds of a call."""
    for _ in range(3):
        call()
    return round(min(clocked(call, device) for _ in range(10)), 4)


def wait(device: torch.device) -> None:
    """Synchronize with a device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _step(speculator: Speculator, rows: Sequence[RunningRequest]) -> None:
    for row, made in zip(rows, speculator.step(rows), strict=True):
        row.advance(made)
