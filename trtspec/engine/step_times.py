# SPDX-License-Identifier: Apache-2.0
"""Measures a speculator's step times by batch size and draft length, and its prefill times."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import cycle, islice

import torch

from trtspec.core.errors import TrtspecError
from trtspec.engine.generation.request import EngineRequest
from trtspec.engine.generation.request_state import RunningRequest
from trtspec.engine.prefill import prefill
from trtspec.engine.speculator import Speculator

Tokens = Sequence[int]
Case = tuple[int, int]  # requests, draft_len


@torch.inference_mode()
def step_times(
    speculator: Speculator,
    texts: Sequence[tuple[Tokens, Tokens]],
    batches: Sequence[int],
    lens: Sequence[int],
    *,
    steps: int,
    least_s: float,
    rounds: int,
    max_tokens: int,
    on_round: Callable[[int], None] = lambda done: None,
) -> dict[Case, list[float]]:
    """Return the mean seconds of a step, including draft, verification and bookkeeping, of each round and case.

    A mean covers at least `steps` steps and, if the answers are long enough, about `least_s` seconds. All cases are
    thus measured over a similar time; otherwise short steps could all fall into a fast moment of the machine.

    The rows are taken from `texts` (prompt, answer), which are repeated if there are too few. As on a server, the rows
    are at different positions of their answers, from the first token to the last; the longest row determines the time
    of attention. The first step is not timed, because its draft processes the beginning of the text.
    """
    found: dict[Case, list[float]] = {(rows, draft_len): [] for rows in batches for draft_len in lens}
    most = (steps + 1) * (max(lens) + 1)  # tokens
    fitting = min(most, sum(len(answer) for _, answer in texts) // len(texts))
    timed, grown = dict.fromkeys(found, steps), dict.fromkeys(found, 0)
    for number in range(rounds + 1):
        for case, samples in found.items():
            rows, draft_len = case
            batch = _prefill_batch(speculator, texts, rows, grown[case], most, max_tokens)
            seconds, grown[case] = _run(speculator, batch, draft_len, timed[case])
            timed[case] = max(steps, min(math.ceil(least_s / seconds), fitting // (draft_len + 1) - 1))
            if number:  # round 0 is the warm-up
                samples.append(seconds)
        on_round(number)
    return found


@torch.inference_mode()
def prefill_seconds(
    speculator: Speculator, prompts: Sequence[Tokens], *, rounds: int, max_tokens: int
) -> tuple[float, float]:
    """Return the mean seconds of a prefill, with the target alone and with the drafter: the minimum over `rounds`."""
    alone, whole = list[float](), list[float]()
    for _ in range(rounds + 1):
        started = time.perf_counter()
        for prompt in prompts:
            prefill(speculator.target, [[*prompt]], 0, max_tokens)
        between = time.perf_counter()
        for prompt in prompts:
            speculator.prefill(
                [RunningRequest(EngineRequest(tuple(prompt), 2), lambda update: None, None)], 0, max_tokens
            )
        alone.append((between - started) / len(prompts))
        whole.append((time.perf_counter() - between) / len(prompts))
    return min(alone[1:]), min(whole[1:])  # round 0 is the warm-up


def _prefill_batch(
    speculator: Speculator,
    texts: Sequence[tuple[Tokens, Tokens]],
    rows: int,
    growth: int,
    most: int,
    max_tokens: int,
) -> list[RunningRequest]:
    """Prefill `rows` texts, cut between their answer's first token and `growth` tokens before its last.

    Texts that leave no room for `most` new tokens lose their first tokens.
    """
    longest = speculator.settings.max_seq_len
    room = longest - most - 2
    if room < 1:
        raise TrtspecError(f"engine.max_seq_len leaves no room for {most} new tokens", hint="raise it")
    batch = []
    for row, (prompt, answer) in enumerate(islice(cycle(texts), rows)):
        text = (*prompt, *answer[: (2 * row + 1) * max(0, len(answer) - growth) // (2 * rows)])[-room:]
        batch.append(RunningRequest(EngineRequest(text, longest - len(text)), lambda update: None, None))
    for running, progress in zip(batch, speculator.prefill(batch, 0, max_tokens), strict=True):
        running.begin(progress)
    return batch


def _run(speculator: Speculator, batch: Sequence[RunningRequest], draft_len: int, steps: int) -> tuple[float, int]:
    """Return the mean seconds of a step of `draft_len`, after one untimed step, and the mean output tokens of a row."""
    for running in batch:
        running.request = replace(running.request, draft_len=draft_len)
    _step(speculator, batch)
    started = time.perf_counter()
    for _ in range(steps):
        _step(speculator, batch)
    seconds = (time.perf_counter() - started) / steps
    return seconds, sum(len(running.text) - len(running.request.prompt_ids) for running in batch) // len(batch)


def _step(speculator: Speculator, batch: Sequence[RunningRequest]) -> None:
    """Run a step as the engine does."""
    reasons = [running.advance(progress) for running, progress in zip(batch, speculator.step(batch), strict=True)]
    for running, reason in zip(batch, reasons, strict=True):
        running.update(reason)
