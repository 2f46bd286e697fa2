# SPDX-License-Identifier: Apache-2.0
"""How long the steps of a speculator take, by how many requests run and how much is drafted, and its prefills."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import cycle, islice

import torch

from trtspec.errors import TrtspecError
from trtspec.generation.request import Request
from trtspec.generation.running import Running
from trtspec.torch_engine.prefill import prefill
from trtspec.torch_engine.speculator import Speculator

Tokens = Sequence[int]
Case = tuple[int, int]  # requests, draft_len


@torch.inference_mode()
def step_times(
    speculator: Speculator,
    prompts: Sequence[Tokens],
    cases: Sequence[Case],
    *,
    steps: int,
    rounds: int,
    max_tokens: int,
    on_round: Callable[[int], None] = lambda done: None,
) -> dict[Case, float]:
    """Return the seconds of a step for each (requests, draft_len), draft, verification and bookkeeping included.

    The least of `rounds` means over the `steps` steps behind a prefill of that many of the prompts, which are taken
    again where there are fewer: every round takes the same steps, so that only what else the machine does adds to one.
    To draft more takes no less: a case that took longer than one with more drafts met such a time in every round.
    """
    found: dict[Case, list[float]] = {case: [] for case in cases}
    for number in range(rounds + 1):
        for case in cases:
            batch = _begun(speculator, prompts, case, steps, max_tokens)
            seconds = _run(speculator, batch, steps)
            if number:  # what is done only once is not measured
                found[case].append(seconds)
        on_round(number)
    return {
        (rows, draft_len): min(
            min(samples) for (others, longer), samples in found.items() if others == rows and longer >= draft_len
        )
        for rows, draft_len in cases
    }


@torch.inference_mode()
def prefill_seconds(
    speculator: Speculator, prompts: Sequence[Tokens], *, rounds: int, max_tokens: int
) -> tuple[float, float]:
    """Return the mean seconds of a prompt's prefill, by the target alone and with drafter: the least of `rounds`."""
    alone, whole = list[float](), list[float]()
    for _ in range(rounds + 1):
        started = time.perf_counter()
        for prompt in prompts:
            prefill(speculator.target, [[*prompt]], 0, max_tokens)
        between = time.perf_counter()
        for prompt in prompts:
            speculator.prefill([Running(Request(tuple(prompt), 2), lambda update: None, None)], 0, max_tokens)
        alone.append((between - started) / len(prompts))
        whole.append((time.perf_counter() - between) / len(prompts))
    return min(alone[1:]), min(whole[1:])  # what is done only once is not measured


def _begun(speculator: Speculator, prompts: Sequence[Tokens], case: Case, steps: int, max_tokens: int) -> list[Running]:
    (rows, draft_len), most = case, speculator.draft_shape.max_depth
    new = 2 + (steps + 1) * (most + 1)
    room = speculator.settings.max_seq_len - new
    if room < 1:
        raise TrtspecError(f"engine.max_seq_len leaves no room for {new} new tokens", hint="raise it")
    requests = [Request(tuple(prompt[-room:]), new, draft_len=draft_len) for prompt in islice(cycle(prompts), rows)]
    batch = [Running(request, lambda update: None, None) for request in requests]
    for running, made in zip(batch, speculator.prefill(batch, 0, max_tokens), strict=True):
        running.begin(made)
    return batch


def _run(speculator: Speculator, batch: Sequence[Running], steps: int) -> float:
    """Return the mean seconds of a step."""
    started = time.perf_counter()
    for _ in range(steps):
        for running, made in zip(batch, speculator.step(batch), strict=True):
            running.advance(made)
    return (time.perf_counter() - started) / steps
