# SPDX-License-Identifier: Apache-2.0
"""A smaller model, trained to have the target's next-token distribution on the target's own texts."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from trtspec.checkpoints.rules import layer_tensor
from trtspec.checkpoints.source_model import load_model
from trtspec.checkpoints.trtllm import EMBEDDING, FINAL_NORM, LM_HEAD
from trtspec.engine.calibration.layer_pass import embedding_scale
from trtspec.training.batches import Batch
from trtspec.training.layers import Layer, View, cap
from trtspec.training.tensors import SourceTensors
from trtspec.training.trainable import DraftSource, Student, Trainable


class ModelStudent(Student):
    """A dense model of any family."""

    reads_on = True

    def __init__(self, source: DraftSource) -> None:
        model, settings = load_model(source.root, "auto"), source.settings
        self.config, self.width = model.config, model.config.hidden_size
        device = source.target.device
        self.tensors = SourceTensors(model.source, model.rules, lambda rule: True, settings.lora, settings.seed, device)

    def hidden(self, view: View, batch: Batch, features: Tensor | None) -> list[Tensor]:
        """Return what the final norm gives."""
        config = self.config
        hidden = F.embedding(batch.tokens, view[EMBEDDING])
        if config.scaled_embedding:
            hidden = hidden * embedding_scale(config, hidden.dtype).to(hidden.device)
        for number in range(config.num_layers):
            hidden = Layer(view, layer_tensor(number, "")[:-1], config, number)(hidden)
        at_places = hidden.flatten(0, 1)[batch.flat()]
        return [F.rms_norm(at_places, at_places.shape[-1:], view[FINAL_NORM], config.norm_epsilon)]

    def logits(self, view: View, hidden: Tensor, step: int) -> Tensor:
        """Return the LM head's."""
        return cap(F.linear(hidden, view[LM_HEAD]), self.config.logit_cap)


TRAINABLE = Trainable(ModelStudent)
