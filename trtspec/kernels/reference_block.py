# SPDX-License-Identifier: Apache-2.0
"""Block verification of sampled chains in numpy and float64: the reference for every faster implementation.

Sun et al. 2024, arXiv:2403.10444, algorithm 2. A chain is accepted as a whole: `kept` is the share of a prefix's draft
probability that its target probability covers, held at 1 from token to token, so that what one token has too much makes
up for what a later one lacks. Every prefix is offered its own chance, and the longest one that takes it is accepted;
the token after it comes from what the target has left there.

The output has exactly the target's distribution, and no exact rule accepts more tokens on average. A chain may end
where its draft ended it by its distributions and the tokens before: then each of the draft's prefixes ends one way.
"""

from __future__ import annotations

import numpy as np

from trtspec.kernels.reference import Floats, Ints, one_hot, pick
from trtspec.kernels.verify_result import VerifyResult


def verify_block(target_probs: Floats, draft_probs: Floats | None, tokens: Ints, uniforms: Floats) -> VerifyResult:
    """Verify one request's chain; the arguments are those of `reference.verify_chain`."""
    kept, best, left = 1.0, 0, target_probs[0]
    for position, token in enumerate(tokens):
        proposal = proposal_at(draft_probs, position, token, target_probs)
        if not position:
            left = surplus(1.0, target_probs[0], proposal)
        kept = cover(kept * target_probs[position, token], proposal[token])
        after = target_probs[position + 1]
        rest, chance = after, kept
        if position + 1 < len(tokens):
            following = proposal_at(draft_probs, position + 1, tokens[position + 1], target_probs)
            rest = surplus(kept, after, following)
            chance = chance_of(rest.sum(), kept)
        if uniforms[position] < chance:
            best, left = position + 1, rest
    after = target_probs[best]
    return VerifyResult(list(range(1, best + 1)), pick(left if left.sum() > 0.0 else after, uniforms[-1]))


def proposal_at(draft_probs: Floats | None, position: int, token: int, like: Floats) -> Floats:
    """Return what a token was sampled from [vocab]; a deterministic one from itself alone."""
    return one_hot(token, like[0]) if draft_probs is None else draft_probs[position]


def cover(target: float, draft: float) -> float:
    """Return the share of a prefix's draft mass that the target covers, at most 1; 0 where the target has none."""
    return 1.0 if target >= draft and target > 0.0 else float(target / draft) if target > 0.0 else 0.0


def surplus(kept: float, target: Floats, proposal: Floats) -> Floats:
    """Return the mass [vocab] that the target has beyond the draft's behind a prefix of which `kept` is left."""
    return np.maximum(kept * target - proposal, 0.0)


def chance_of(surplus_mass: float, kept: float) -> float:
    """Return the probability that a prefix is accepted unless a longer one is; without any mass none stops there."""
    total = surplus_mass + (1.0 - kept)
    return float(surplus_mass / total) if total > 0.0 else 1.0
