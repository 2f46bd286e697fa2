# SPDX-License-Identifier: Apache-2.0
"""The transformer: a converted TensorRT-LLM checkpoint as torch tensors, and its forward pass over a KV cache.

Rows of a batch may have different lengths; everything that depends only on positions is in a `Window`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from trtspec.checkpoints.trtllm import TrtllmCheckpoint, load_checkpoint
from trtspec.engine.model.attention import KVCache, attend
from trtspec.engine.model.layer_pass import embedding_scale
from trtspec.engine.model.layers import DecoderLayer, Norm
from trtspec.engine.model.positions import Window, Windows
from trtspec.engine.model.weights import DecoderWeights

# The auxiliary layer number of the hidden state after the final norm, which is the input of the LM head.
FINAL = -1


@dataclass(frozen=True)
class Sublayers:
    """Numbers of the layers whose attention or MLP is skipped."""

    attention: frozenset[int] = frozenset()
    mlp: frozenset[int] = frozenset()


NONE_SKIPPED = Sublayers()


class Decoder:
    """A model on a device with a KV cache of `rows` x `max_len`, for texts of `length` tokens (0: `max_len`)."""

    def __init__(
        self,
        checkpoint: TrtllmCheckpoint,
        rows: int,
        max_len: int,
        device: torch.device,
        dtype: torch.dtype,
        length: int = 0,
    ) -> None:
        self.checkpoint, self.config = checkpoint, checkpoint.config
        self.device, self.dtype = device, dtype
        self.weights = DecoderWeights(self.checkpoint, device, dtype)
        self.embedding = self.weights.embedding()
        self._embedding_scale = embedding_scale(self.config, dtype).to(device)
        self.layers = [self.weights.layer(number) for number in range(self.config.num_layers)]
        self.final_norm = self.weights.final_norm()
        self.lm_head = self.weights.lm_head(self.embedding)
        self.norm = Norm(self.config.hidden_size, self.config.norm_epsilon, device)
        self.windows = Windows(self.config, max_len, device, dtype, length)
        self.cache = KVCache(self.config, rows, max_len, device, dtype)

    @classmethod
    def load(cls, root: Path, *arguments: Any, **options: Any) -> Decoder:
        """Load the checkpoint at `root`; the other arguments are the constructor's."""
        return cls(load_checkpoint(root), *arguments, **options)

    def forward(self, tokens: Tensor, window: Window, at: Tensor | None = None) -> Tensor:
        """Run `tokens` [rows, width] through the model, writing their keys and values.

        Args:
            tokens: int64 ids.
            window: their positions.
            at: flat indices into rows * width of the tokens whose logits are returned, or None for all.

        Returns:
            Logits [len(at) or rows * width, vocab] in the compute dtype.
        """
        return self.forward_with_features(tokens, window, (), at)[0]

    def forward_with_features(
        self,
        tokens: Tensor,
        window: Window,
        aux_layers: Sequence[int],
        at: Tensor | None = None,
        skipped: Sublayers = NONE_SKIPPED,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the logits of `forward` and the hidden states at `aux_layers` [rows * width, aux_layers * hidden].

        Auxiliary layer i is the input of layer i (num_layers: the output of the last layer), FINAL the output of the
        final norm; the hidden states are None without `aux_layers`. `skipped` sublayers are not computed.
        """
        count, padding = tokens.numel(), self._padding(tokens.numel())
        hidden = F.embedding(F.pad(tokens.flatten(), (0, padding)) if padding else tokens.flatten(), self.embedding)
        if self.config.scaled_embedding:
            hidden = hidden * self._embedding_scale
        kept = {}
        for number, layer in enumerate(self.layers):
            kept[number] = hidden
            if number not in skipped.attention:
                hidden = self._attention(hidden, number, layer, window)
            if number not in skipped.mlp:
                hidden = layer.mlp.add_to(hidden, self.norm(hidden, layer.post_norm))
        normed = self.norm(hidden, self.final_norm)
        kept |= {len(self.layers): hidden, FINAL: normed}
        features = torch.cat([kept[aux_layer][:count] for aux_layer in aux_layers], -1) if aux_layers else None
        return self.lm_head(normed)[:count] if at is None else self.lm_head(normed[at]), features

    def _padding(self, count: int) -> int:
        """Return the padding rows of a pass of `count` rows; 0 with experts, which would load weights for padding."""
        return 0 if self.config.num_experts else self.layers[0].qkv.matrix.taken(count) - count

    def _attention(self, hidden: Tensor, number: int, layer: DecoderLayer, window: Window) -> Tensor:
        qkv = layer.qkv(self.norm(hidden, layer.input_norm))
        seen = window.near if layer.has_window and window.near else window
        mixed = attend(qkv[: window.rows * window.width], layer, number, seen, self.cache, self.config)
        if padding := len(hidden) - len(mixed):
            mixed = F.pad(mixed, (0, 0, 0, padding))
        return layer.dense.add_to(hidden, mixed)
