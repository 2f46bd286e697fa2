# SPDX-License-Identifier: Apache-2.0
"""How long the steps of a speculator take, by how many requests run and how much is drafted, and its prefills."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import cycle, islice

import torch

from trtspec.core.errors import TrtspecError
from trtspec.engine.generation.request import Request
from trtspec.engine.generation.request_state import Running
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
    """Return the mean seconds of a step, draft, verification and bookkeeping included, of each round and case.

    A mean is of at least `steps` steps and, as far as answers are long enough, of some `least_s` seconds: of short
    steps as long a time counts as of long ones, otherwise they alone are seen in a machine's best moments.

    The rows are so many of the `texts`, prompts and what was said to them, which are taken again where there are fewer.
    As on a server each row is at another place of its answer, from the first token to the last; attention takes as long
    as the longest row has it take. The first step is not timed: its draft takes in the text's beginning.
    """
    found: dict[Case, list[float]] = {(rows, draft_len): [] for rows in batches for draft_len in lens}
    most = (steps + 1) * (max(lens) + 1)  # tokens
    fitting = min(most, sum(len(said) for _, said in texts) // len(texts))
    timed, grown = dict.fromkeys(found, steps), dict.fromkeys(found, 0)
    for number in range(rounds + 1):
        for case, samples in found.items():
            rows, draft_len = case
            batch = _begun(speculator, texts, rows, grown[case], most, max_tokens)
            seconds, grown[case] = _run(speculator, batch, draft_len, timed[case])
            timed[case] = max(steps, min(math.ceil(least_s / seconds), fitting // (draft_len + 1) - 1))
            if number:  # what is done only once is not measured
                samples.append(seconds)
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


def _begun(
    speculator: Speculator,
    texts: Sequence[tuple[Tokens, Tokens]],
    rows: int,
    growth: int,
    most: int,
    max_tokens: int,
) -> list[Running]:
    """Prefill so many texts, from their first token to `growth` before their last.

    They are cut off at their beginnings where they leave no room for `most` new tokens.
    """
    longest = speculator.settings.max_seq_len
    room = longest - most - 2
    if room < 1:
        raise TrtspecError(f"engine.max_seq_len leaves no room for {most} new tokens", hint="raise it")
    batch = []
    for row, (prompt, said) in enumerate(islice(cycle(texts), rows)):
        text = (*prompt, *said[: (2 * row + 1) * max(0, len(said) - growth) // (2 * rows)])[-room:]
        batch.append(Running(Request(text, longest - len(text)), lambda update: None, None))
    for running, made in zip(batch, speculator.prefill(batch, 0, max_tokens), strict=True):
        running.begin(made)
    return batch


def _run(speculator: Speculator, batch: Sequence[Running], draft_len: int, steps: int) -> tuple[float, int]:
    """Return the mean seconds of a step that drafts so much, behind one that is not timed, and the tokens of a row."""
    for running in batch:
        running.request = replace(running.request, draft_len=draft_len)
    _step(speculator, batch)
    started = time.perf_counter()
    for _ in range(steps):
        _step(speculator, batch)
    seconds = (time.perf_counter() - started) / steps
    return seconds, sum(len(running.text) - len(running.request.prompt_ids) for running in batch) // len(batch)


def _step(speculator: Speculator, batch: Sequence[Running]) -> None:
    """Do what the engine does in a step."""
    reasons = [running.advance(made) for running, made in zip(batch, speculator.step(batch), strict=True)]
    for running, reason in zip(batch, reasons, strict=True):
        running.update(reason)
