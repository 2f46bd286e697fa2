# SPDX-License-Identifier: Apache-2.0
"""Block verification of sampled chains in numpy and float64: the reference for every faster implementation.

Sun et al. 2024, arXiv:2403.10444, algorithm 2. A chain is accepted as a whole: `kept` is the share of a prefix's draft
probability that its target probability covers, clipped to 1 after each token, so that a surplus of one token can
compensate a deficit of a later one. Each prefix is accepted with its own probability, and the longest accepted prefix
wins. The next token is sampled from the target's remaining mass there.

The output has exactly the target's distribution, and no exact rule accepts more tokens on average. A drafter may decide
where a chain ends by its distributions and the previous tokens: then each prefix has only one way to end.
"""

from __future__ import annotations

import numpy as np

from trtspec.kernels.reference import Floats, Ints, one_hot, pick
from trtspec.kernels.verify_result import VerifyResult


def verify_block(target_probs: Floats, draft_probs: Floats | None, tokens: Ints, uniforms: Floats) -> VerifyResult:
    """Verify one request's chain; same arguments as `reference.verify_chain`."""
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
    """Return the distribution [vocab] of a drafted token; one-hot for a deterministic token."""
    return one_hot(token, like[0]) if draft_probs is None else draft_probs[position]


def cover(target: float, draft: float) -> float:
    """Return the share of a prefix's draft mass that the target covers, at most 1; 0 if the target's mass is 0."""
    return 1.0 if target >= draft and target > 0.0 else float(target / draft) if target > 0.0 else 0.0


def surplus(kept: float, target: Floats, proposal: Floats) -> Floats:
    """Return the target's mass [vocab] in excess of the draft's after a prefix with the share `kept`."""
    return np.maximum(kept * target - proposal, 0.0)


def chance_of(surplus_mass: float, kept: float) -> float:
    """Return the probability that a prefix is accepted unless a longer one is; 1 without any mass."""
    total = surplus_mass + (1.0 - kept)
    return float(surplus_mass / total) if total > 0.0 else 1.0
