# SPDX-License-Identifier: Apache-2.0
"""How long the steps of a speculator take, by how many requests run and how much is drafted, and its prefills."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
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
    batches: Sequence[int],
    lens: Sequence[int],
    *,
    steps: int,
    rounds: int,
    max_tokens: int,
    answer_len: int,
    on_round: Callable[[int], None] = lambda done: None,
) -> dict[Case, list[float]]:
    """Return the mean seconds of `steps` steps, draft, verification and bookkeeping included, of each round and case.

    That many of the prompts, which are taken again where there are fewer, are prefilled, and go on with one draft
    length after another up to `answer_len` tokens, as answers do (one length alone may take more): a step behind longer
    texts takes longer. Each round begins with another length, so that none has the longest texts always. The first step
    of a length is not timed: its draft takes in what the one before left out.
    """
    found: dict[Case, list[float]] = {(rows, draft_len): [] for rows in batches for draft_len in lens}
    most = (steps + 1) * (max(lens) + 1)
    for number in range(rounds + 1):
        first = number * len(lens) // (rounds + 1)
        for rows in batches:
            batch: list[Running] = []
            for draft_len in (*lens[first:], *lens[:first]):
                new = (steps + 1) * (draft_len + 1)
                if not batch or _said(batch) + new > answer_len or not _has_room(speculator, batch, new):
                    batch = _begun(speculator, prompts, rows, most, max_tokens)
                seconds = _run(speculator, batch, draft_len, steps)
                if number:  # what is done only once is not measured
                    found[rows, draft_len].append(seconds)
        on_round(number)
    return found


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


def _said(batch: Sequence[Running]) -> int:
    return max(len(running.text) - len(running.request.prompt_ids) for running in batch)


def _has_room(speculator: Speculator, batch: Sequence[Running], new: int) -> bool:
    return max(len(running.text) for running in batch) + new < speculator.settings.max_seq_len


def _begun(speculator: Speculator, prompts: Sequence[Tokens], rows: int, new: int, max_tokens: int) -> list[Running]:
    """Prefill so many prompts, cut off at their beginnings where they leave no room for `new` tokens."""
    longest = speculator.settings.max_seq_len
    room = longest - new - 2
    if room < 1:
        raise TrtspecError(f"engine.max_seq_len leaves no room for {new} new tokens", hint="raise it")
    texts = [tuple(prompt[-room:]) for prompt in islice(cycle(prompts), rows)]
    batch = [Running(Request(text, longest - len(text)), lambda update: None, None) for text in texts]
    for running, made in zip(batch, speculator.prefill(batch, 0, max_tokens), strict=True):
        running.begin(made)
    return batch


def _run(speculator: Speculator, batch: Sequence[Running], draft_len: int, steps: int) -> float:
    """Return the mean seconds of a step that drafts so much, behind one that is not timed."""
    for running in batch:
        running.request = replace(running.request, draft_len=draft_len)
    _step(speculator, batch)
    started = time.perf_counter()
    for _ in range(steps):
        _step(speculator, batch)
    return (time.perf_counter() - started) / steps


def _step(speculator: Speculator, batch: Sequence[Running]) -> None:
    for running, made in zip(batch, speculator.step(batch), strict=True):
        running.advance(made)
