# SPDX-License-Identifier: Apache-2.0
"""What a drafter proposes at every place of texts that are known already.

A greedy text is the same whatever drafts for it, so the target reads it once, in a pass over all of its places, and its
features are handed to the drafter one place after another, as if each of its drafts had been rejected. How much of each
draft the text then goes on with gives the counts of every draft length at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import torch
from torch import Tensor

from trtspec.engine.drafting.base import Draft, Outcome
from trtspec.engine.prefill import prefill
from trtspec.engine.speculator import Speculator
from trtspec.kernels.verify_result import VerifyResult

Tokens = Sequence[int]


@dataclass(frozen=True)
class Proposed:
    """What was drafted at one place: how many tokens in a row, how many in all, and with how many the text goes on."""

    depth: int
    tokens: int
    matched: int


@torch.inference_mode()
def replay(speculator: Speculator, texts: Sequence[tuple[Tokens, Tokens]], max_tokens: int) -> list[list[Proposed]]:
    """Return what is proposed behind each token that was said but the last, for each (prompt, said) text.

    At most as many texts as the speculator has rows; each says at least one token. `max_tokens` bounds one pass of the
    target. Only for drafters that replay (see `Drafter.replays`).
    """
    order = sorted(range(len(texts)), key=lambda number: -len(texts[number][1]))
    ordered = [texts[number] for number in order]
    places: list[list[Proposed]] = [[] for _ in texts]
    features = _read(speculator, ordered, max_tokens)
    drafter, depth = speculator.drafter, speculator.draft_shape.max_depth
    for place in range(len(ordered[0][1]) - 1):
        going = [text for text in ordered if place + 1 < len(text[1])]
        draft = drafter.propose([[*prompt, *said[: place + 1]] for prompt, said in going], depth, None)
        following = [said[place + 1 :] for _, said in going]
        for row, proposed in enumerate(_compared(draft, following)):
            places[order[row]].append(proposed)
        ends = [len(prompt) + place for prompt, _ in going]
        drafter.observe(_rejected(following, features, ends))
    return places


def _read(speculator: Speculator, texts: Sequence[tuple[Tokens, Tokens]], max_tokens: int) -> Tensor | None:
    """Let the target read the texts and the drafter the prompts; return the target's features of all places."""
    whole, drafter = [[*prompt, *said] for prompt, said in texts], speculator.drafter
    found = prefill(speculator.target, whole, 0, max_tokens, drafter.aux_layers)
    drafter.begin([prompt for prompt, _ in texts], 0, max_tokens)
    for features, start in found.features:
        drafter.read(features, start)
    return torch.cat([features for features, _ in found.features], 1) if found.features else None


def _rejected(following: Sequence[Tokens], features: Tensor | None, ends: Sequence[int]) -> Outcome:
    """Return the outcome of a step that accepts nothing, where the texts go on with their own next tokens."""
    results = [VerifyResult([], rest[0]) for rest in following]
    own = None if features is None else torch.stack([features[row, end] for row, end in enumerate(ends)]).unsqueeze(1)
    return Outcome(results, torch.empty(0), own)


def _compared(draft: Draft, following: Sequence[Tokens]) -> list[Proposed]:
    """Return how much of each row's draft its text goes on with."""
    tokens = draft.tokens.tolist()
    if draft.tree is None:
        lens = draft.lens or [len(row) for row in tokens]
        return [
            Proposed(count, count, _prefix(row[:count], rest))
            for row, count, rest in zip(tokens, lens, following, strict=True)
        ]
    shapes = list(zip(draft.tree.children, draft.tree.depths, strict=True))
    if len(shapes) == 1:
        shapes *= len(tokens)
    return [
        Proposed(int(depths.max()), int((depths > 0).sum()), _path(children, said, rest))
        for (children, depths), said, rest in zip(shapes, tokens, following, strict=True)
    ]


def _prefix(drafted: Tokens, rest: Tokens) -> int:
    """Return with how many tokens both begin."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(drafted, rest, strict=False)))


def _path(children: list[list[int]], tokens: Tokens, rest: Tokens) -> int:
    """Return how far a tree's branches go with a text; `tokens` are those of nodes 1, 2, ..."""
    node = 0
    for depth, token in enumerate(rest):
        found = next((child for child in children[node] if tokens[child - 1] == token), None)
        if found is None:
            return depth
        node = found
    return len(rest)
