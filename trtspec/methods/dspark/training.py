# SPDX-License-Identifier: Apache-2.0
"""A DSpark net: DFlash's, whose every token also depends on the one before, with a head that foresees acceptance.

The token before is the text's: a chain that still counts has drafted it. What a place's confidence learns is the
probability that a token sampled there is accepted (deepseek-ai/DeepSpec:deepspec/modeling/dspark/loss.py@afdfa7c).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from trtspec.methods.dflash.stored import CONFIDENCE, MARKOV
from trtspec.methods.dflash.training import DFlashStudent
from trtspec.training.batches import Batch
from trtspec.training.layers import View
from trtspec.training.trainable import Trainable


class DSparkStudent(DFlashStudent):
    """A net with a Markov head; its hidden states are the block's beside the numbers of the token before."""

    method = "dspark"

    def hidden(self, view: View, batch: Batch, features: Tensor | None) -> list[Tensor]:
        """Return the block's hidden states and the numbers of the tokens before, joined."""
        made, numbers = super().hidden(view, batch, features), view[f"{self.method}.{MARKOV}markov_w1.weight"]
        before = (F.embedding(batch.tokens_after(step), numbers) for step in range(self.passes))
        return [torch.cat(pair, -1) for pair in zip(made, before, strict=True)]

    def logits(self, view: View, hidden: Tensor, step: int) -> Tensor:
        """Return those of the LM head with the bias that the token before gives."""
        found, before = hidden[:, : self.width], hidden[:, self.width :]
        return super().logits(view, found, step) + F.linear(before, view[f"{self.method}.{MARKOV}markov_w2.weight"])

    def sureness(self, view: View, hidden: Tensor, step: int) -> Tensor | None:
        """Return the logits of the confidence head, where the net has one."""
        name = f"{self.method}.{CONFIDENCE}"
        if not self.net.confidence_width:
            return None
        seen = hidden[:, : self.net.confidence_width]
        return F.linear(seen, view[f"{name}weight"], view.get(f"{name}bias")).squeeze(-1)


TRAINABLE = Trainable(DSparkStudent)
