# SPDX-License-Identifier: Apache-2.0
"""What heads borrow of their target: its embedding and its LM head, in float32, which are not trained."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from trtspec.engine.model.decoder import Decoder
from trtspec.engine.model.layers import CappedHead
from trtspec.training.layers import cap


@dataclass(frozen=True)
class Borrowed:
    """An embedding [vocab, hidden], and an LM head's rows [vocab, hidden]; logits are capped unless `most` is 0."""

    embedding: Tensor
    head: Tensor
    most: float = 0.0

    @classmethod
    def of(cls, target: Decoder) -> Borrowed:
        """Return those of a target."""
        head = target.lm_head
        most = head.cap if isinstance(head, CappedHead) else 0.0
        weight = (head.head if isinstance(head, CappedHead) else head).matrix.weight
        return cls(target.embedding.float(), weight.float(), most)

    def embed(self, tokens: Tensor) -> Tensor:
        """Return embeddings [..., hidden] of tokens."""
        return F.embedding(tokens, self.embedding)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the target's logits [n, vocab] of hidden states [n, hidden]."""
        return cap(F.linear(hidden, self.head), self.most)
