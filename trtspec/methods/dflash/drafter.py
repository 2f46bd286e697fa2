# SPDX-License-Identifier: Apache-2.0
"""DFlash: drafts the block net's prediction at each mask token, all in one pass (arXiv:2602.06036).

The net's KV cache contains keys and values for the positions of the text. They are projections of the target's hidden
states and do not depend on the net's earlier layers, so they are written as soon as the hidden states are available.
The keys and values of the block follow them and are overwritten in later steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from trtspec.checkpoints.model_config import ModelConfig
from trtspec.engine.drafting.base import (
    SAME,
    BatchShape,
    ConfidenceFloor,
    Drafter,
    DrafterConfig,
    DraftSampling,
    DraftTokens,
    SmallerVocabulary,
    VerifyOutcome,
    Vocabulary,
    draft_parallel,
)
from trtspec.engine.model.decoder import Decoder, KVCache, attend, cache_context
from trtspec.engine.model.layers import Linear, Norm, make_matrix
from trtspec.engine.model.positions import Window, Windows
from trtspec.engine.model.weights import WeightLoader
from trtspec.methods.dflash import net_rules, stored_net


class BlockNetwork:
    """The block net in a target's checkpoint; a missing embedding or LM head is taken from the target.

    `kind` is "dflash" or "dspark". `aux_layers` are the target's auxiliary hidden-state layers that the net reads.
    `weights` loads further tensors of the net.
    """

    def __init__(self, target: Decoder, room: BatchShape, kind: str) -> None:
        checkpoint = target.checkpoint
        self.net = net = stored_net(checkpoint, kind)
        self.config = net.layer
        self.aux_layers = tuple(layer + 1 for layer in net.target_layers)
        stored = [name.removeprefix(f"{kind}.") for name in checkpoint.ranks[-1] if name.startswith(f"{kind}.")]
        self.weights = weights = WeightLoader(checkpoint, net_rules(net, kind, stored), room.device, room.dtype)
        self._embedding = (
            weights.tensor(f"{kind}.embed_tokens.weight") if "embed_tokens.weight" in stored else target.embedding
        )
        self.lm_head = weights.linear(f"{kind}.lm_head") if "lm_head.weight" in stored else target.lm_head
        self._fc = weights.linear(f"{kind}.fc")
        self._context_norm, self._last_norm = (weights.norm(f"{kind}.{name}") for name in ("hidden_norm", "norm"))
        self._norm = Norm(self.config.hidden_size, self.config.norm_epsilon, room.device)
        layers = [f"{kind}.layers.{number}" for number in range(self.config.num_layers)]
        self._input_norms = [weights.norm(f"{layer}.input_layernorm") for layer in layers]
        self._blocks = [weights.block(layer, self.config) for layer in layers]
        self._kv = _keys_and_values([block.qkv for block in self._blocks], self.config)
        norms = [block.qk_norm[self.config.num_heads :] for block in self._blocks if block.qk_norm is not None]
        self._key_norm = torch.cat(norms) if norms else None
        self.vocabulary: Vocabulary = SAME
        if "d2t" in stored:
            self.vocabulary = SmallerVocabulary(weights.target_ids(f"{kind}.d2t"), target.config.vocab_size)
        self.windows = Windows(self.config, room.max_len, room.device, room.dtype)
        self.cache = KVCache(self.config, room.rows, room.max_len, room.device, room.dtype)

    def take_in(self, states: Tensor, window: Window) -> None:
        """Write keys and values of the target's hidden states [rows * width, aux_layers * hidden] to the cache."""
        context = self._norm(self._fc(states), self._context_norm)
        cache_context(self._kv(context), self._key_norm, window, self.cache, self.config)

    def forward(self, tokens: Tensor, window: Window) -> Tensor:
        """Return the normalized hidden states [rows * width, hidden] for blocks of tokens [rows, width]."""
        hidden = F.embedding(tokens.flatten(), self._embedding)
        for number, (norm, block) in enumerate(zip(self._input_norms, self._blocks, strict=True)):
            mixed = attend(block.qkv(self._norm(hidden, norm)), block, number, window, self.cache, self.config)
            hidden = block.dense.add_to(hidden, mixed)
            hidden = block.mlp.add_to(hidden, self._norm(hidden, block.post_norm))
        return self._norm(hidden, self._last_norm)


def _keys_and_values(layers: Sequence[Linear], config: ModelConfig) -> Linear:
    """Fuse the key and value projections of all layers, which have the same input; all keys come before all values."""
    queries = config.num_heads * config.head_size

    def joined(of_layers: list[Tensor]) -> Tensor:
        by_layer = torch.stack([each[queries:] for each in of_layers])
        return by_layer.view(len(layers), 2, -1, *by_layer.shape[2:]).transpose(0, 1).flatten(0, 2)

    biases = [qkv.bias for qkv in layers if qkv.bias is not None]
    return Linear(make_matrix(joined([qkv.matrix.weight for qkv in layers])), joined(biases) if biases else None)


class BlockDrafter(Drafter):
    """Base of the block drafters: runs the net on a block after the text, and keeps its KV cache in sync with the text.

    Hidden states of accepted tokens are queued until the next draft, so that steps without a draft do no work.
    """

    def __init__(self, setup: DrafterConfig, kind: str) -> None:
        self.network = BlockNetwork(setup.target, setup.room, kind)
        self.aux_layers = self.network.aux_layers
        self._most, self._device = setup.draft_shape.max_depth, setup.room.device
        self._known = [0] * setup.room.rows  # number of tokens of each row's text in the net's cache
        self._waiting: dict[int, list[Tensor]] = {}  # by row: queued states [n, aux_layers * hidden]
        self._first_row = 0

    def begin(self, prompts: Sequence[Sequence[int]], first_row: int, max_tokens: int) -> None:
        self._first_row = first_row
        self._known[first_row : first_row + len(prompts)] = map(len, prompts)
        self._waiting |= {first_row + row: [] for row in range(len(prompts))}

    def read(self, features: Tensor, start: int) -> None:
        """Write keys and values for a chunk of the prompts; entries beyond a prompt's end are overwritten later."""
        rows, width, _ = features.shape
        window = self.network.windows.unmasked([start] * rows, width, self._first_row)
        self.network.take_in(features.flatten(0, 1), window)

    def observe(self, outcome: VerifyOutcome) -> None:
        for row, accepted in enumerate(outcome.accepted_features()):
            self._waiting[row].append(accepted)

    def move_row(self, source: int, target: int, length: int) -> None:
        self.network.cache.move_row(source, target, length)
        self._known[target], self._waiting[target] = self._known[source], self._waiting[source]

    def _take_in(self, rows: int) -> None:
        """Write keys and values for the queued hidden states; entries for the padding of rows are overwritten later."""
        found = [states for row in range(rows) for states in self._waiting[row]]
        if not found:
            return
        waiting = [torch.cat([found[0][:0], *self._waiting[row]]) for row in range(rows)]
        states = pad_sequence(waiting, batch_first=True)
        window = self.network.windows.unmasked(self._known[:rows], states.shape[1])
        self.network.take_in(states.flatten(0, 1), window)
        for row, taken in enumerate(waiting):
            self._known[row] += len(taken)
            self._waiting[row] = []

    def _fill(self, texts: Sequence[Sequence[int]], depth: int) -> Tensor:
        """Return the hidden states [rows, depth, hidden] from which the draft tokens are predicted.

        The net always processes the full block. Its positions attend to each other, and a row's draft must not depend
        on `depth`, which depends on the other rows.
        """
        self._take_in(len(texts))
        network, skipped = self.network, int(not self.network.net.drafts_at_anchor)
        width = self._most + skipped
        starts = [len(text) - 1 for text in texts]
        masks = [network.net.mask_token] * (width - 1)
        tokens = torch.tensor([[text[-1], *masks] for text in texts], device=self._device)
        windows = network.windows
        window = windows.chain(starts, width) if network.net.is_causal else windows.block(starts, width)
        found = network.forward(tokens, window).view(len(texts), width, -1)
        return found[:, skipped : skipped + depth]


class DFlashDrafter(BlockDrafter):
    """Drafts a chain whose tokens are predicted independently of each other."""

    def __init__(self, setup: DrafterConfig) -> None:
        super().__init__(setup, "dflash")
        self._floors = ConfidenceFloor(chain=setup.confidence)

    def propose(self, texts: Sequence[Sequence[int]], depth: int, sampling: DraftSampling | None) -> DraftTokens:
        hidden = self._fill(texts, depth)
        logits = self.network.lm_head(hidden.flatten(0, 1)).view(len(texts), depth, -1)
        return draft_parallel(logits, sampling, self._floors, self.network.vocabulary)


DRAFTER = DFlashDrafter
