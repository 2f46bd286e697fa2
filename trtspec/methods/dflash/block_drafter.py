# SPDX-License-Identifier: Apache-2.0
"""Drafting with a block net: it fills a block of mask tokens behind the text in one pass, from the target's states.

The net's cache holds what its layers make of the target's hidden states, at the positions of the text; these see no
layer before, so that they are written as they come. A block stands behind them and is written over by what follows.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from trtspec.checkpoints.model_config import ModelConfig
from trtspec.core.errors import CheckpointError
from trtspec.engine.drafting.base import Drafter, Outcome, Room, Setup
from trtspec.engine.drafting.vocabulary import SAME, SmallerVocabulary, Vocabulary
from trtspec.engine.model.attention import attend, remember
from trtspec.engine.model.attention_masks import Window, Windows
from trtspec.engine.model.cache import KVCache
from trtspec.engine.model.decoder import Decoder
from trtspec.engine.model.head_weights import HeadWeights
from trtspec.engine.model.layers import Linear
from trtspec.engine.model.matrix import matrix_of
from trtspec.engine.model.norm import Norm
from trtspec.methods.dflash.stored import net_rules, stored_net


class BlockNetwork:
    """The net of a `kind` in a target's checkpoint; it shares the target's embedding and LM head where it has none.

    `aux_layers` are the target's auxiliary hidden-state layers that it reads; `weights` has its further tensors.
    """

    def __init__(self, target: Decoder, room: Room, kind: str) -> None:
        checkpoint = target.checkpoint
        names = checkpoint.ranks[-1].keys()
        net = stored_net(checkpoint.document, names, target.config, kind)
        if net is None:
            hint = f"convert it with a net: method: {kind}, and the net under speculation.draft"
            raise CheckpointError(f"holds no net of {kind}", where=str(checkpoint.root), hint=hint)
        self.net, self.config = net, net.layer
        self.aux_layers = tuple(layer + 1 for layer in net.target_layers)
        own = [name.removeprefix(f"{kind}.") for name in names if name.startswith(f"{kind}.")]
        self.weights = weights = HeadWeights(checkpoint, net_rules(net, kind, own), room.device, room.dtype)
        self._embedding = (
            weights.tensor(f"{kind}.embed_tokens.weight") if "embed_tokens.weight" in own else target.embedding
        )
        self.lm_head = weights.linear(f"{kind}.lm_head") if "lm_head.weight" in own else target.lm_head
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
        if "d2t" in own:
            self.vocabulary = SmallerVocabulary(weights.target_ids(f"{kind}.d2t"), target.config.vocab_size)
        self.windows = Windows(self.config, room.max_len, room.device, room.dtype)
        self.cache = KVCache(self.config, room.rows, room.max_len, room.device, room.dtype)

    def take_in(self, states: Tensor, window: Window) -> None:
        """Write what the layers see of the target's hidden states [rows * width, aux_layers * hidden] at a window."""
        context = self._norm(self._fc(states), self._context_norm)
        remember(self._kv(context), self._key_norm, window, self.cache, self.config)

    def forward(self, tokens: Tensor, window: Window) -> Tensor:
        """Return the hidden states [rows * width, hidden] of blocks of tokens [rows, width], for the LM head."""
        hidden = F.embedding(tokens.flatten(), self._embedding)
        for number, (norm, block) in enumerate(zip(self._input_norms, self._blocks, strict=True)):
            mixed = attend(block.qkv(self._norm(hidden, norm)), block, number, window, self.cache, self.config)
            hidden = block.dense.add_to(hidden, mixed)
            hidden = block.mlp.add_to(hidden, self._norm(hidden, block.post_norm))
        return self._norm(hidden, self._last_norm)


def _keys_and_values(layers: Sequence[Linear], config: ModelConfig) -> Linear:
    """Return the products that give all layers' keys and then all their values as one: they read the same states."""
    queries = config.num_heads * config.head_size

    def joined(of_layers: list[Tensor]) -> Tensor:
        by_layer = torch.stack([each[queries:] for each in of_layers])
        return by_layer.view(len(layers), 2, -1, *by_layer.shape[2:]).transpose(0, 1).flatten(0, 2)

    biases = [qkv.bias for qkv in layers if qkv.bias is not None]
    return Linear(matrix_of(joined([qkv.matrix.weight for qkv in layers])), joined(biases) if biases else None)


class BlockDrafter(Drafter):
    """Runs a block behind the text, up to which it keeps the net's cache.

    What steps accept waits until the next draft begins, so that steps which draft nothing cost nothing here.
    """

    def __init__(self, setup: Setup, kind: str) -> None:
        self.network = BlockNetwork(setup.target, setup.room, kind)
        self.aux_layers = self.network.aux_layers
        self._most, self._device = setup.draft_shape.max_depth, setup.room.device
        self._known = [0] * setup.room.rows  # tokens of each row's text whose states the net has
        self._waiting: dict[int, list[Tensor]] = {}  # by row, the states [n, aux_layers * hidden] of those behind them
        self._first_row = 0

    def begin(self, prompts: Sequence[Sequence[int]], first_row: int, max_tokens: int) -> None:
        """Remember where the prompts end."""
        self._first_row = first_row
        self._known[first_row : first_row + len(prompts)] = map(len, prompts)
        self._waiting |= {first_row + row: [] for row in range(len(prompts))}

    def read(self, features: Tensor, start: int) -> None:
        """Take in a chunk of the prompts; what stands beyond one is written over."""
        rows, width, _ = features.shape
        window = self.network.windows.unmasked([start] * rows, width, self._first_row)
        self.network.take_in(features.flatten(0, 1), window)

    def observe(self, outcome: Outcome) -> None:
        """Keep the hidden states of each accepted path."""
        for row, accepted in enumerate(outcome.accepted_features()):
            self._waiting[row].append(accepted)

    def move_row(self, source: int, target: int, length: int) -> None:
        """Move the row in the net's cache, and its waiting states."""
        self.network.cache.move_row(source, target, length)
        self._known[target], self._waiting[target] = self._known[source], self._waiting[source]

    def _take_in(self, rows: int) -> None:
        """Write into the net's cache what has waited; shorter rows' padding is written over by what follows."""
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
        """Return the hidden states [rows, depth, hidden] that the first drafted tokens are predicted from.

        The block has its full width whatever `depth` is: its places see each other, and a row's draft must not depend
        on how much other rows have left to say.
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
