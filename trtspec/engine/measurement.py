# SPDX-License-Identifier: Apache-2.0
"""Measurements of a speculator: its drafts at every position of known texts, and the duration of its steps.

A greedy text does not depend on the drafter. The target therefore processes it once, in one pass over all positions,
and the drafter gets the target's features position by position, as if every draft had been rejected. The matching
prefix of each draft gives the acceptance counts of all draft lengths.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice, takewhile

import torch
from torch import Tensor

from trtspec.core.errors import TrtspecError
from trtspec.engine.drafting.base import DraftTokens, VerifyOutcome
from trtspec.engine.generation.request import EngineRequest
from trtspec.engine.generation.request_state import RunningRequest
from trtspec.engine.prefill import prefill
from trtspec.engine.speculator import Speculator
from trtspec.kernels.chain import VerifyResult

Tokens = Sequence[int]
Case = tuple[int, int]  # requests, draft_len


@dataclass(frozen=True)
class ReplayedDraft:
    """The draft at one position: its depth, its number of tokens, and how many of them in a row match the text."""

    depth: int
    tokens: int
    matched: int


@torch.inference_mode()
def replay(
    speculator: Speculator, texts: Sequence[tuple[Tokens, Tokens]], max_tokens: int
) -> list[list[ReplayedDraft]]:
    """Return the drafts after each output token except the last, for each (prompt, output) text.

    `texts` has at most as many entries as the speculator has rows; each output has at least one token. `max_tokens`
    limits the tokens in one pass of the target. The drafter must have `Drafter.replays`.
    """
    order = sorted(range(len(texts)), key=lambda number: -len(texts[number][1]))
    ordered = [texts[number] for number in order]
    proposals: list[list[ReplayedDraft]] = [[] for _ in texts]
    features = _prefill(speculator, ordered, max_tokens)
    drafter, depth = speculator.drafter, speculator.draft_shape.max_depth
    for position in range(len(ordered[0][1]) - 1):
        active = [text for text in ordered if position + 1 < len(text[1])]
        draft = drafter.propose([[*prompt, *output[: position + 1]] for prompt, output in active], depth, None)
        following = [output[position + 1 :] for _, output in active]
        for row, proposed in enumerate(_compare(draft, following)):
            proposals[order[row]].append(proposed)
        ends = [len(prompt) + position for prompt, _ in active]
        drafter.observe(_rejected(following, features, ends))
    return proposals


def _prefill(speculator: Speculator, texts: Sequence[tuple[Tokens, Tokens]], max_tokens: int) -> Tensor | None:
    """Prefill the target with the texts and the drafter with the prompts; return the target's features.

    They are [texts, positions, aux_layers * hidden], or None for a drafter without auxiliary layers.
    """
    whole, drafter = [[*prompt, *output] for prompt, output in texts], speculator.drafter
    found = prefill(speculator.target, whole, 0, max_tokens, drafter.aux_layers)
    drafter.begin([prompt for prompt, _ in texts], 0, max_tokens)
    for features, start in found.features:
        drafter.read(features, start)
    return torch.cat([features for features, _ in found.features], 1) if found.features else None


def _rejected(following: Sequence[Tokens], features: Tensor | None, ends: Sequence[int]) -> VerifyOutcome:
    """Return the outcome of a step that rejects all drafts and continues each text with its actual next token."""
    results = [VerifyResult([], rest[0]) for rest in following]
    if features is not None:
        features = torch.stack([features[row, end] for row, end in enumerate(ends)]).unsqueeze(1)
    return VerifyOutcome(results, torch.empty(0), features)


def _compare(draft: DraftTokens, following: Sequence[Tokens]) -> list[ReplayedDraft]:
    """Compare each row's draft with the actual continuation of its text."""
    tokens = draft.tokens.tolist()
    if draft.tree is None:
        lens = draft.lens or [len(row) for row in tokens]
        return [
            ReplayedDraft(count, count, _common_prefix(row[:count], rest))
            for row, count, rest in zip(tokens, lens, following, strict=True)
        ]
    shapes = list(zip(draft.tree.children, draft.tree.depths, strict=True))
    if len(shapes) == 1:
        shapes *= len(tokens)
    return [
        ReplayedDraft(int(depths.max()), int((depths > 0).sum()), _path(children, drafted, rest))
        for (children, depths), drafted, rest in zip(shapes, tokens, following, strict=True)
    ]


def _common_prefix(drafted: Tokens, rest: Tokens) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(drafted, rest, strict=False)))


def _path(children: list[list[int]], tokens: Tokens, rest: Tokens) -> int:
    """Return the depth of the longest tree path that matches a text; `tokens` belong to nodes 1, 2, ..."""
    node = 0
    for depth, token in enumerate(rest):
        found = next((child for child in children[node] if tokens[child - 1] == token), None)
        if found is None:
            return depth
        node = found
    return len(rest)


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
    """Return the mean seconds per step for each case, (requests, draft_len), with one value per round.

    A step includes draft, verification and bookkeeping. A mean covers at least `steps` steps and, if the answers are
    long enough, about `least_s` seconds. All cases are thus measured over a similar time; otherwise short steps could
    all fall into a fast moment of the machine.

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
    """Return the mean prefill seconds per prompt, without and with the drafter: the minimum over `rounds`."""
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

    Texts that leave no room for `most` new tokens lose their first tokens. Raises TrtspecError if `most` tokens do not
    fit at all.
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
    """Return the mean seconds per step of `draft_len`, after one untimed step, and the mean output tokens of a row."""
    for running in batch:
        running.request = replace(running.request, draft_len=draft_len)
    _step(speculator, batch)
    started = time.perf_counter()
    for _ in range(steps):
        _step(speculator, batch)
    seconds = (time.perf_counter() - started) / steps
    return seconds, sum(len(running.text) - len(running.request.prompt_ids) for running in batch) // len(batch)


def _step(speculator: Speculator, batch: Sequence[RunningRequest]) -> None:
    reasons = [running.advance(progress) for running, progress in zip(batch, speculator.step(batch), strict=True)]
    for running, reason in zip(batch, reasons, strict=True):
        running.update(reason)
