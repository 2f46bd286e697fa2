# SPDX-License-Identifier: Apache-2.0
"""Replay of known texts: a drafter's proposal at every position.

A greedy text does not depend on the drafter. The target therefore processes it once, in one pass over all positions,
and the drafter gets the target's features position by position, as if every draft had been rejected. The matching
prefix of each draft gives the acceptance counts of all draft lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import torch
from torch import Tensor

from trtspec.engine.drafting.base import DraftTokens, VerifyOutcome
from trtspec.engine.prefill import prefill
from trtspec.engine.speculator import Speculator
from trtspec.kernels.verify_result import VerifyResult

Tokens = Sequence[int]


@dataclass(frozen=True)
class ReplayedDraft:
    """The draft at one position: its depth, its number of tokens, and how many tokens in a row match the text."""

    depth: int
    tokens: int
    matched: int


@torch.inference_mode()
def replay(
    speculator: Speculator, texts: Sequence[tuple[Tokens, Tokens]], max_tokens: int
) -> list[list[ReplayedDraft]]:
    """Return the proposals after each output token except the last, for each (prompt, output) text.

    `texts` has at most as many entries as the speculator has rows; each output has at least one token. `max_tokens`
    bounds one pass of the target. Only for drafters with `Drafter.replays`.
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
    """Prefill the target with the texts and the drafter with the prompts; return the target's features."""
    whole, drafter = [[*prompt, *output] for prompt, output in texts], speculator.drafter
    found = prefill(speculator.target, whole, 0, max_tokens, drafter.aux_layers)
    drafter.begin([prompt for prompt, _ in texts], 0, max_tokens)
    for features, start in found.features:
        drafter.read(features, start)
    return torch.cat([features for features, _ in found.features], 1) if found.features else None


def _rejected(following: Sequence[Tokens], features: Tensor | None, ends: Sequence[int]) -> VerifyOutcome:
    """Return the outcome of a step that accepts no drafts; each text continues with its actual next token."""
    results = [VerifyResult([], rest[0]) for rest in following]
    if features is None:
        return VerifyOutcome(results, torch.empty(0), None)
    at_ends = torch.stack([features[row, end] for row, end in enumerate(ends)]).unsqueeze(1)
    return VerifyOutcome(results, torch.empty(0), at_ends)


def _compare(draft: DraftTokens, following: Sequence[Tokens]) -> list[ReplayedDraft]:
    """Compare each row's draft with the tokens that follow in its text."""
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
    """Return the length of the common prefix."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(drafted, rest, strict=False)))


def _path(children: list[list[int]], tokens: Tokens, rest: Tokens) -> int:
    """Return the depth of the longest path of a tree that matches a text; `tokens` belong to nodes 1, 2, ..."""
    node = 0
    for depth, token in enumerate(rest):
        found = next((child for child in children[node] if tokens[child - 1] == token), None)
        if found is None:
            return depth
        node = found
    return len(rest)
