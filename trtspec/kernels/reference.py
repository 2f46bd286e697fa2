# SPDX-License-Identifier: Apache-2.0
"""The acceptance rule of speculative sampling in numpy and float64: the oracle for every faster implementation.

Rule (Leviathan et al. 2023, arXiv:2211.17192; Chen et al. 2023, arXiv:2302.01318): the drafted token x at a position
is accepted when u * draft_probs[x] < target_probs[x]; at the first rejection the next token is drawn from
max(target_probs - draft_probs, 0), renormalised; when all are accepted, from the target's row after the last one.
The text then has exactly the target's distribution, whatever drafted it. Uniforms are arguments, so that two
implementations can be asked for identical tokens. Plain loops, because they can be read.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def warp(logits: Floats, temperature: float, top_k: int, top_p: float) -> Floats:
    """Return the probabilities [vocab] a request samples from.

    Temperature 0 is greedy: all mass on the largest logit, the lowest id among equals. Otherwise temperature, then
    the `top_k` most probable (0 = all), then the smallest set of them that holds `top_p` of their mass; among equal
    probabilities lower ids come first.
    """
    if temperature == 0.0:
        one_hot = np.zeros(len(logits))
        one_hot[np.argmax(logits)] = 1.0
        return one_hot
    probs: Floats = np.exp((logits - logits.max()) / temperature)
    order = np.argsort(-probs, kind="stable")
    if top_k:
        probs[order[top_k:]] = 0.0
    probs = probs / probs.sum()
    before = np.cumsum(probs[order]) - probs[order]
    probs[order[before >= top_p]] = 0.0
    kept: Floats = probs / probs.sum()
    return kept


def pick(weights: Floats, uniform: float) -> int:
    """Return the token at `uniform` of the cumulated weights [vocab], which need not be normalised.

    A token of weight zero is never returned.
    """
    cumulated = np.cumsum(weights)
    beyond = np.flatnonzero(cumulated > uniform * cumulated[-1])
    return int(beyond[0]) if len(beyond) else int(np.flatnonzero(weights)[-1])


def verify_chain(target_probs: Floats, draft_probs: Floats, draft_tokens: Ints, uniforms: Floats) -> tuple[int, int]:
    """Verify one request's chain; returns (number of accepted tokens, next token).

    Args:
        target_probs: [draft_len + 1, vocab], the target's row at each drafted position and after the last.
        draft_probs: [draft_len, vocab], what each drafted token was drawn from; one-hot for a token that was chosen.
        draft_tokens: [draft_len].
        uniforms: [draft_len + 1] in [0, 1): one per drafted token, then one for the next token.
    """
    for position, token in enumerate(draft_tokens):
        target, draft = target_probs[position], draft_probs[position]
        if not (target[token] > 0.0 and uniforms[position] * draft[token] < target[token]):
            residual = np.maximum(target - draft, 0.0)
            return position, pick(residual if residual.sum() > 0.0 else target, uniforms[-1])
    return len(draft_tokens), pick(target_probs[-1], uniforms[-1])
