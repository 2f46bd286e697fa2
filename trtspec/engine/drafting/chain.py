# SPDX-License-Identifier: Apache-2.0
"""Chain drafts: token by token with a language model, or from the logits of all positions at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trtspec.engine.drafting.base import DraftSampling, DraftTokens
from trtspec.engine.drafting.vocabulary import SAME, Vocabulary
from trtspec.engine.model.positions import Window


@dataclass(frozen=True)
class ConfidenceFloor:
    """The minimum confidence for a draft to continue; 0 disables a bound.

    The confidence at a position is the probability of the most probable token, or the draft's own estimate. `token`
    bounds the confidence, `chain` its product over the positions so far.

    The decision depends only on a token's distribution and the tokens before it. If it depended on the token itself, it
    would bias the text.
    """

    token: float = 0.0
    chain: float = 0.0

    def lens(self, confidence: Tensor) -> list[int]:
        """Return each row's draft length from the confidence at each position [rows, positions]."""
        sufficient = (confidence >= self.token) & (confidence.cumprod(1) >= self.chain)
        lens: list[int] = sufficient.long().cumprod(1).sum(1).tolist()
        return lens


NO_FLOOR = ConfidenceFloor()


class SampledChain:
    """The chains of `rows` rows, built from the logits of one position at a time."""

    def __init__(
        self, rows: int, device: torch.device, sampling: DraftSampling | None, vocabulary: Vocabulary = SAME
    ) -> None:
        self._sampling, self._vocabulary = sampling, vocabulary
        self._tokens, self._probs = [torch.empty((rows, 0), dtype=torch.int64, device=device)], list[Tensor]()

    def add(self, logits: Tensor) -> Tensor:
        """Draft a token of each row from logits [rows, the draft's vocabulary]; return the target's ids [rows]."""
        if self._sampling is None:
            drafted = logits.argmax(-1)
        else:
            probs = self._sampling.params.probs(logits)
            drafted = self._sampling.draw(probs, len(self._probs))
            self._probs.append(self._vocabulary.spread(probs))
        tokens = self._vocabulary.to_target(drafted)
        self._tokens.append(tokens.unsqueeze(1))
        return tokens

    def draft(self, lens: list[int]) -> DraftTokens:
        """Return the draft with `lens` valid tokens per row, without the columns that no row uses."""
        tokens, most = torch.cat(self._tokens, 1), max(lens)
        return DraftTokens(
            tokens[:, :most], torch.stack(self._probs[:most], 1) if self._probs[:most] else None, lens=lens
        )


def max_probability(logits: Tensor) -> Tensor:
    """Return the probability [...] of the most probable token by logits [..., vocabulary]."""
    return torch.softmax(logits.float(), -1).amax(-1)


def draft_chain(
    logits: Tensor,
    forward: Callable[[Tensor, Window], Tensor],
    windows: Sequence[Window],
    sampling: DraftSampling | None,
    floors: ConfidenceFloor,
    vocabulary: Vocabulary = SAME,
) -> DraftTokens:
    """Draft a token after each text and at each window, until the confidence in all rows is too low.

    Args:
        logits: [rows, the draft's vocabulary], after each text.
        forward: returns the logits after drafted tokens [rows], given as the target's ids, at a window.
        windows: the positions of the drafted tokens except the last.
        sampling: the sampling of drafts, or None if all rows are greedy.
        floors: the minimum confidence, which costs one transfer to the host per token.
        vocabulary: the vocabulary of the logits.
    """
    rows = len(logits)
    chain = SampledChain(rows, logits.device, sampling, vocabulary)
    grows, lens, confidence = [True] * rows, [0] * rows, torch.ones(rows, device=logits.device)
    for window in (*windows, None):
        if floors != NO_FLOOR:
            probability = max_probability(logits)
            confidence = confidence * probability
            sufficient = (probability >= floors.token) & (confidence >= floors.chain)
            grows = [grew and is_enough for grew, is_enough in zip(grows, sufficient.tolist(), strict=True)]
            if not any(grows):
                break
        lens = [length + grew for length, grew in zip(lens, grows, strict=True)]
        tokens = chain.add(logits)
        if window is not None:
            logits = forward(tokens, window)
    return chain.draft(lens)


def draft_parallel(
    logits: Tensor, sampling: DraftSampling | None, floors: ConfidenceFloor, vocabulary: Vocabulary = SAME
) -> DraftTokens:
    """Draft one token for each position of logits [rows, positions, the draft's vocabulary], bounded by `floors`."""
    rows, positions, _ = logits.shape
    chain = SampledChain(rows, logits.device, sampling, vocabulary)
    for at_position in logits.unbind(1):
        chain.add(at_position)
    return chain.draft([positions] * rows if floors == NO_FLOOR else floors.lens(max_probability(logits)))
