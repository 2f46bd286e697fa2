# SPDX-License-Identifier: Apache-2.0
"""Drafting chains: token by token with a language model, or out of logits that are there at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trtspec.engine.drafting.base import Draft, DraftSampling
from trtspec.engine.drafting.vocabulary import SAME, Vocabulary
from trtspec.engine.model.attention_masks import Window


@dataclass(frozen=True)
class Floors:
    """How sure a draft has to be to go on, 0 for however unsure.

    How sure it is of a place is the probability of its best token there, or what it estimates itself; `token` bounds
    that, `chain` the product over the places so far.

    That is decided by what a token is sampled from and by those before it: by the token itself it would bias the text.
    """

    token: float = 0.0
    chain: float = 0.0

    def lens(self, sureness: Tensor) -> list[int]:
        """Return at how many places each row goes on, by how sure it is of each [rows, places]."""
        sure = (sureness >= self.token) & (sureness.cumprod(1) >= self.chain)
        lens: list[int] = sure.long().cumprod(1).sum(1).tolist()
        return lens


NEVER = Floors()


class DrawnChain:
    """The chains of `rows` rows, a token of each for each of their logits."""

    def __init__(
        self, rows: int, device: torch.device, sampling: DraftSampling | None, vocabulary: Vocabulary = SAME
    ) -> None:
        self._sampling, self._vocabulary = sampling, vocabulary
        self._tokens, self._probs = [torch.empty((rows, 0), dtype=torch.int64, device=device)], list[Tensor]()

    def add(self, logits: Tensor) -> Tensor:
        """Draft a token of each row by logits [rows, the draft's vocabulary], and return the target's ids [rows]."""
        if self._sampling is None:
            drafted = logits.argmax(-1)
        else:
            probs = self._sampling.params.probs(logits)
            drafted = self._sampling.draw(probs, len(self._probs))
            self._probs.append(self._vocabulary.spread(probs))
        tokens = self._vocabulary.to_target(drafted)
        self._tokens.append(tokens.unsqueeze(1))
        return tokens

    def draft(self, lens: list[int]) -> Draft:
        """Return what was drafted, of which `lens` tokens of each row count; columns of none are left out."""
        tokens, most = torch.cat(self._tokens, 1), max(lens)
        return Draft(tokens[:, :most], torch.stack(self._probs[:most], 1) if self._probs[:most] else None, lens=lens)


class GrowingChain:
    """The chains of `rows` rows that grow together; one ends for good where its draft is not sure enough."""

    def __init__(
        self,
        rows: int,
        device: torch.device,
        sampling: DraftSampling | None,
        floors: Floors,
        vocabulary: Vocabulary = SAME,
    ) -> None:
        self._drawn, self._floors = DrawnChain(rows, device, sampling, vocabulary), floors
        self._grows, self._lens = [True] * rows, [0] * rows
        self._sureness = torch.ones(rows, device=device)

    def add(self, logits: Tensor) -> Tensor | None:
        """Draft a token of each row by logits [rows, the draft's vocabulary], and return the target's ids [rows].

        None where no row goes on.
        """
        if self._floors != NEVER:
            self._end(likeliest(logits))
        if not any(self._grows):
            return None
        self._lens = [length + grows for length, grows in zip(self._lens, self._grows, strict=True)]
        return self._drawn.add(logits)

    def _end(self, sureness: Tensor) -> None:
        """End the chains of rows that are not sure enough, with one transfer to the host."""
        self._sureness = self._sureness * sureness
        sure = (sureness >= self._floors.token) & (self._sureness >= self._floors.chain)
        self._grows = [grew and sure for grew, sure in zip(self._grows, sure.tolist(), strict=True)]

    def draft(self) -> Draft:
        """Return what was drafted."""
        return self._drawn.draft(self._lens)


def likeliest(logits: Tensor) -> Tensor:
    """Return the probability of the best token [...] by logits [..., vocabulary]."""
    return torch.softmax(logits.float(), -1).amax(-1)


def draft_chain(
    forward: Callable[[Tensor, Window], Tensor],
    tokens: Tensor,
    windows: Sequence[Window],
    sampling: DraftSampling | None,
    floors: Floors,
    vocabulary: Vocabulary = SAME,
) -> Draft:
    """Draft one token for each window, until no row goes on.

    Args:
        forward: returns each row's logits [rows, the draft's vocabulary] after tokens at a window; after the first
            window these are the target's ids of what was drafted.
        tokens: [rows, width of the first window], the end of each text; the other windows are one token wide.
        windows: the positions of the tokens.
        sampling: how rows sample; None where all are greedy.
        floors: where a row's chain ends.
        vocabulary: what the logits are of.
    """
    chain = GrowingChain(len(tokens), tokens.device, sampling, floors, vocabulary)
    for window in windows:
        drafted = chain.add(forward(tokens, window))
        if drafted is None:
            break
        tokens = drafted
    return chain.draft()


def draft_at_once(
    logits: Tensor, sampling: DraftSampling | None, floors: Floors, vocabulary: Vocabulary = SAME
) -> Draft:
    """Draft one token for each place of logits [rows, places, the draft's vocabulary], until no row goes on."""
    rows, places, _ = logits.shape
    chain = DrawnChain(rows, logits.device, sampling, vocabulary)
    for place in logits.unbind(1):
        chain.add(place)
    return chain.draft([places] * rows if floors == NEVER else floors.lens(likeliest(logits)))
