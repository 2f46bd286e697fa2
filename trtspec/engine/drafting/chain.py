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


class GrowingChain:
    """The chains of `rows` rows that grow together; a row's chain ends where its confidence is too low."""

    def __init__(
        self,
        rows: int,
        device: torch.device,
        sampling: DraftSampling | None,
        floors: ConfidenceFloor,
        vocabulary: Vocabulary = SAME,
    ) -> None:
        self._drawn, self._floors = SampledChain(rows, device, sampling, vocabulary), floors
        self._grows, self._lens = [True] * rows, [0] * rows
        self._confidence = torch.ones(rows, device=device)

    def add(self, logits: Tensor) -> Tensor | None:
        """Draft a token of each row from logits [rows, the draft's vocabulary]; return the target's ids [rows].

        Return None if all chains have ended.
        """
        if self._floors != NO_FLOOR:
            self._end(max_probability(logits))
        if not any(self._grows):
            return None
        self._lens = [length + grows for length, grows in zip(self._lens, self._grows, strict=True)]
        return self._drawn.add(logits)

    def _end(self, confidence: Tensor) -> None:
        """End the chains whose confidence is too low, with one transfer to the host."""
        self._confidence = self._confidence * confidence
        sufficient = (confidence >= self._floors.token) & (self._confidence >= self._floors.chain)
        self._grows = [grew and grows for grew, grows in zip(self._grows, sufficient.tolist(), strict=True)]

    def draft(self) -> DraftTokens:
        """Return the draft."""
        return self._drawn.draft(self._lens)


def max_probability(logits: Tensor) -> Tensor:
    """Return the probability [...] of the most probable token by logits [..., vocabulary]."""
    return torch.softmax(logits.float(), -1).amax(-1)


def draft_chain(
    forward: Callable[[Tensor, Window], Tensor],
    tokens: Tensor,
    windows: Sequence[Window],
    sampling: DraftSampling | None,
    floors: ConfidenceFloor,
    vocabulary: Vocabulary = SAME,
) -> DraftTokens:
    """Draft one token for each window, until all chains have ended.

    Args:
        forward: returns each row's logits [rows, the draft's vocabulary] after tokens at a window; after the first
            window, the tokens are the target's ids of the drafted tokens.
        tokens: [rows, width of the first window], the end of each text; the other windows are one token wide.
        windows: the positions of the tokens.
        sampling: the sampling of drafts, or None if all rows are greedy.
        floors: the minimum confidence.
        vocabulary: the vocabulary of the logits.
    """
    chain = GrowingChain(len(tokens), tokens.device, sampling, floors, vocabulary)
    for window in windows:
        drafted = chain.add(forward(tokens, window))
        if drafted is None:
            break
        tokens = drafted
    return chain.draft()


def draft_parallel(
    logits: Tensor, sampling: DraftSampling | None, floors: ConfidenceFloor, vocabulary: Vocabulary = SAME
) -> DraftTokens:
    """Draft one token for each position of logits [rows, positions, the draft's vocabulary], bounded by `floors`."""
    rows, positions, _ = logits.shape
    chain = SampledChain(rows, logits.device, sampling, vocabulary)
    for at_position in logits.unbind(1):
        chain.add(at_position)
    return chain.draft([positions] * rows if floors == NO_FLOOR else floors.lens(max_probability(logits)))
