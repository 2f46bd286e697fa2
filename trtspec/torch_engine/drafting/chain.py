# SPDX-License-Identifier: Apache-2.0
"""Drafting chains: token by token with a language model, or out of logits that are there at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trtspec.torch_engine.drafting.base import Draft, DraftSampling
from trtspec.torch_engine.drafting.vocabulary import SAME, Vocabulary
from trtspec.torch_engine.model.windows import Window


@dataclass(frozen=True)
class Floors:
    """How sure a draft has to be to go on, 0 for however unsure.

    How sure it is of a place is the probability of its best token there, or what it estimates itself; `token` bounds
    that, `chain` the product over the places so far.
    """

    token: float = 0.0
    chain: float = 0.0


NEVER = Floors()


class GrowingChain:
    """The chains of `rows` rows that grow together; one ends for good where its draft is not sure enough.

    That is decided before a token is sampled, by the distribution that it will be sampled from and those before it: by
    the sampled token it would bias the text.
    """

    def __init__(
        self,
        rows: int,
        device: torch.device,
        sampling: DraftSampling | None,
        floors: Floors,
        vocabulary: Vocabulary = SAME,
    ) -> None:
        self._sampling, self._floors, self._vocabulary = sampling, floors, vocabulary
        self._tokens, self._probs = [torch.empty((rows, 0), dtype=torch.int64, device=device)], list[Tensor]()
        self._grows, self._lens = [True] * rows, [0] * rows
        self._sureness = torch.ones(rows, device=device)

    def add(self, logits: Tensor, sureness: Tensor | None = None) -> Tensor | None:
        """Draft a token of each row, and return the target's ids of them [rows]; None where no row goes on.

        `logits` are [rows, the draft's vocabulary], `sureness` [rows] is the draft's own estimate of its acceptance.
        """
        if self._floors != NEVER:
            self._end(torch.softmax(logits.float(), -1).amax(-1) if sureness is None else sureness)
        if not any(self._grows):
            return None
        if self._sampling is None:
            drafted = logits.argmax(-1)
        else:
            probs = self._sampling.params.probs(logits)
            drafted = self._sampling.draw(probs, len(self._probs))
            self._probs.append(self._vocabulary.spread(probs))
        tokens = self._vocabulary.to_target(drafted)
        self._tokens.append(tokens.unsqueeze(1))
        self._lens = [length + grows for length, grows in zip(self._lens, self._grows, strict=True)]
        return tokens

    def _end(self, sureness: Tensor) -> None:
        """End the chains of rows that are not sure enough, with one transfer to the host."""
        self._sureness = self._sureness * sureness
        sure = (sureness >= self._floors.token) & (self._sureness >= self._floors.chain)
        self._grows = [grew and sure for grew, sure in zip(self._grows, sure.tolist(), strict=True)]

    def draft(self) -> Draft:
        """Return what was drafted."""
        return Draft(torch.cat(self._tokens, 1), torch.stack(self._probs, 1) if self._probs else None, lens=self._lens)


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
    chain = GrowingChain(len(logits), logits.device, sampling, floors, vocabulary)
    for place in logits.unbind(1):
        if chain.add(place) is None:
            break
    return chain.draft()
