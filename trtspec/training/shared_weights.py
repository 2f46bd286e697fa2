# SPDX-License-Identifier: Apache-2.0
"""Frozen weights that heads share with their target: its embedding and LM head, in float32."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from trtspec.engine.model.decoder import Decoder
from trtspec.engine.model.layers import CappedHead
from trtspec.training.layers import cap


@dataclass(frozen=True)
class SharedWeights:
    """Embedding [vocab, hidden] and LM head rows [vocab, hidden]; logits are capped unless `most` is 0."""

    embedding: Tensor
    head: Tensor
    most: float = 0.0

    @classmethod
    def of(cls, target: Decoder) -> SharedWeights:
        """Return the shared weights of a target."""
        head = target.lm_head
        most = head.cap if isinstance(head, CappedHead) else 0.0
        weight = (head.head if isinstance(head, CappedHead) else head).matrix.weight
        return cls(target.embedding.float(), weight.float(), most)

    def embed(self, tokens: Tensor) -> Tensor:
        """Return the embeddings [..., hidden] of tokens."""
        return F.embedding(tokens, self.embedding)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the target's logits [n, vocab] for hidden states [n, hidden]."""
        return cap(F.linear(hidden, self.head), self.most)
