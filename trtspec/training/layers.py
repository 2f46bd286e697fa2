# SPDX-License-Identifier: Apache-2.0
"""A decoder layer as a differentiable function of its tensors.

Tensors have TensorRT-LLM's names, so one function supports every dense family and draft heads. The results equal those
of the torch engine's fused and rearranged layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from trtspec.checkpoints.model_config import ModelConfig
from trtspec.engine.calibration.layer_pass import attend_heads, rotate, rotation
from trtspec.engine.model.layers import ACTIVATIONS
from trtspec.engine.model.rope import sliding_window_config

View: TypeAlias = Mapping[str, Tensor]  # tensors by their names in a converted checkpoint


@dataclass(frozen=True)
class TrainableLayer:
    """A layer's tensors, whose names start with `prefix`, and its number in the model."""

    view: View
    prefix: str
    config: ModelConfig
    number: int = 0

    def __call__(self, hidden: Tensor) -> Tensor:
        """Return the layer's output for hidden states [rows, positions, hidden]; padding is on the right."""
        mixed = self._attend(self.norm(hidden, "input_layernorm"))
        return self.finish(hidden, mixed)

    def finish(self, hidden: Tensor, mixed: Tensor) -> Tensor:
        """Return the layer's output from its residual and its attention output, both [rows, positions, hidden]."""
        mixed = self.linear(mixed, "attention.dense")
        if not self.config.inner_norms:
            hidden = hidden + mixed
            return hidden + self._mlp(self.norm(hidden, "post_layernorm"))
        hidden = hidden + self.norm(mixed, "post_layernorm")
        inner = self._mlp(self.norm(hidden, "pre_feedforward_layernorm"))
        return hidden + self.norm(inner, "post_feedforward_layernorm")

    def heads(self, read: Tensor, at: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values [rows, heads, positions, head_size], rotated by their positions.

        The positions are `at` [rows, positions], by default 0 and up.
        """
        config = self.config
        counts = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
        sizes = [count * config.head_size for count in counts]
        parts = torch.split_with_sizes(self.linear(read, "attention.qkv"), sizes, -1)
        query, key, value = (part.view(*part.shape[:-1], -1, config.head_size) for part in parts)
        if config.qk_norm:
            query, key = (self.norm(part, f"attention.{n}_layernorm") for n, part in (("q", query), ("k", key)))
        reach = read.shape[1] if at is None else int(at.max()) + 1
        cosines, sines = rotation(self._rotated, reach, read.device, read.dtype)
        if at is not None:
            cosines, sines = cosines[at].unsqueeze(1), sines[at].unsqueeze(1)
        query, key = (rotate(part.transpose(1, 2), cosines, sines) for part in (query, key))
        return query, key, value.transpose(1, 2)

    def norm(self, rows: Tensor, module: str) -> Tensor:
        """Normalize rows [..., n] with a module's weight."""
        weight = self.view[f"{self.prefix}.{module}.weight"]
        return F.rms_norm(rows, weight.shape, weight, self.config.norm_epsilon)

    def linear(self, rows: Tensor, module: str) -> Tensor:
        """Multiply rows with a module's matrix, and add its bias if there is one."""
        name = f"{self.prefix}.{module}"
        return F.linear(rows, self.view[f"{name}.weight"], self.view.get(f"{name}.bias"))

    @property
    def _has_window(self) -> bool:
        return self.config.has_window(self.number)

    @property
    def _rotated(self) -> ModelConfig:
        return sliding_window_config(self.config) if self._has_window else self.config

    def _attend(self, normed: Tensor) -> Tensor:
        reach = self.config.sliding_window if self._has_window else 0
        reach = reach if normed.shape[1] > reach else 0
        return attend_heads(*self.heads(normed), self.config, reach).transpose(1, 2).flatten(2)

    def _mlp(self, rows: Tensor) -> Tensor:
        act = self.config.hidden_act
        if act == "swiglu":  # the linear half is stored above the activated one
            linear, activated = self.linear(rows, "mlp.fc").chunk(2, -1)
        else:
            activated, linear = self.linear(rows, "mlp.fc"), self.linear(rows, "mlp.gate")
        return self.linear(ACTIVATIONS[act](activated) * linear, "mlp.proj")


def cap(logits: Tensor, most: float) -> Tensor:
    """Return logits with the model's cap applied."""
    return torch.tanh(logits / most) * most if most else logits
