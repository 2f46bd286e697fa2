# SPDX-License-Identifier: Apache-2.0
"""The nets that draft from a target's hidden states, as they are trained: Medusa's heads, the recurrent drafter, and
the layers of EAGLE and EAGLE-3.

All predict the next tokens from the tokens up to t + 1 and the target's hidden states up to t.
`net(tokens, hidden_states)` returns `net.steps` logits [batch, tokens - steps, draft vocabulary]; the logits of step s
at position t are for the token at t + 2 + s. `hidden_states` are transformers' (the embeddings, then every layer's
output, the last of them after the final norm), and `net.vocab` picks the draft vocabulary out of the target's.
Parameters and persistent buffers are named as in the published checkpoints of each method; what is the target's is not
saved.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import (
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
    repeat_kv,
)


class ResBlock(nn.Module):
    """x + SiLU(linear(x)), the identity at first."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + F.silu(self.linear(x))


class MedusaHeads(nn.ModuleList):
    """One head a step, all of them on the target's last hidden state; every head starts as the target's own."""

    vocab = slice(None)

    def __init__(self, lm_head: torch.Tensor, steps: int) -> None:
        vocab_size, width = lm_head.shape
        super().__init__(nn.Sequential(ResBlock(width), nn.Linear(width, vocab_size, bias=False)) for _ in range(steps))
        self.steps = steps
        for head in self:
            head[1].weight.data.copy_(lm_head)

    def forward(self, tokens: torch.Tensor, hidden_states: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
        seen = hidden_states[-1][:, : tokens.shape[1] - self.steps]
        return [head(seen) for head in self]


class RecurrentDrafter(nn.Module):
    """Keeps the drafted tokens in a recurrent state, and reads it together with the target's last hidden state."""

    vocab = slice(None)

    def __init__(self, target: LlamaForCausalLM, steps: int) -> None:
        super().__init__()
        vocab_size, width = target.lm_head.weight.shape
        self.steps = steps
        self.register_buffer("embeddings", target.model.embed_tokens.weight.detach(), persistent=False)
        self.rnn_w = nn.Linear(width, width, bias=False)
        self.rnn_u = nn.Linear(width, width)
        self.input_proj = nn.Linear(2 * width, width)
        self.lm_head = nn.Sequential(ResBlock(width), nn.Linear(width, vocab_size, bias=False))
        self.lm_head[1].weight.data.copy_(target.lm_head.weight)

    def forward(self, tokens: torch.Tensor, hidden_states: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
        count = tokens.shape[1] - self.steps
        seen, embedded, logits = hidden_states[-1][:, :count], self.embeddings[tokens], []
        state = torch.zeros_like(seen)
        for step in range(self.steps):
            state = F.silu(self.rnn_w(embedded[:, step + 1 : step + 1 + count]) + self.rnn_u(state))
            logits.append(self.lm_head(self.input_proj(torch.cat([seen, state], -1))))
        return logits


class DraftAttention(nn.Module):
    """Attention of a drafting step: over the prefix as the target saw it, and over the chain's own earlier steps."""

    def __init__(self, config: LlamaConfig, width: int) -> None:
        super().__init__()
        self.head_dim, self.groups = config.head_dim, config.num_attention_heads // config.num_key_value_heads
        query_width = config.num_attention_heads * config.head_dim
        kv_width = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(width, query_width, bias=False)
        self.k_proj = nn.Linear(width, kv_width, bias=False)
        self.v_proj = nn.Linear(width, kv_width, bias=False)
        self.o_proj = nn.Linear(query_width, config.hidden_size, bias=False)
        self.rotary = LlamaRotaryEmbedding(config)

    def forward(self, x: torch.Tensor, keys: list[torch.Tensor], values: list[torch.Tensor]) -> torch.Tensor:
        """Return [batch, positions, hidden] for `x` [batch, positions, width] and add its keys and values.

        `keys[s]` and `values[s]` [batch, heads, positions, head_dim] belong to step s; the chain that began at
        position t sees step 0 up to t, and of every later step its own entry only.
        """
        count, step = x.shape[1], len(keys)
        query, key, value = (
            proj(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        rotation = self.rotary(x, torch.arange(step, step + count)[None])
        query, key = apply_rotary_pos_emb(query, key, *rotation)
        keys.append(repeat_kv(key, self.groups))
        values.append(repeat_kv(value, self.groups))
        future = torch.ones(count, count, dtype=torch.bool).triu(1)
        scores = [(query @ keys[0].mT).masked_fill(future, -torch.inf)]
        scores += [(query * own).sum(-1, keepdim=True) for own in keys[1:]]
        weights = torch.softmax(torch.cat(scores, -1).float() / self.head_dim**0.5, -1)
        mixed = weights[..., :count] @ values[0]
        for number, own in enumerate(values[1:]):
            mixed = mixed + weights[..., count + number, None] * own
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


class DraftLayer(nn.Module):
    """A decoder layer without the norm that it begins with: what its attention reads, `width` wide, is given to it."""

    def __init__(self, config: LlamaConfig, width: int) -> None:
        super().__init__()
        self.self_attn = DraftAttention(config, width)
        self.post_attention_layernorm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = LlamaMLP(config)

    def forward(
        self, hidden: torch.Tensor, read: torch.Tensor, keys: list[torch.Tensor], values: list[torch.Tensor]
    ) -> torch.Tensor:
        hidden = hidden + self.self_attn(read, keys, values)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class EagleNet(nn.Module):
    """Joins a token's embedding with the target's last hidden state before it, and continues that state with a layer.

    It drafts on its own output: training runs the steps that drafting will. Embedding and head are the target's.
    """

    vocab = slice(None)

    def __init__(self, config: LlamaConfig, target: LlamaForCausalLM, steps: int) -> None:
        super().__init__()
        self.steps = steps
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.layers = nn.ModuleList([DraftLayer(config, config.hidden_size)])
        self.register_buffer("embeddings", target.model.embed_tokens.weight.detach(), persistent=False)
        self.register_buffer("head", target.lm_head.weight.detach(), persistent=False)

    def forward(self, tokens: torch.Tensor, hidden_states: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
        count = tokens.shape[1] - self.steps
        hidden = hidden_states[-1][:, :count]
        embedded, keys, values, logits = self.embeddings[tokens], [], [], []
        for step in range(self.steps):
            joined = self.fc(torch.cat([embedded[:, step + 1 : step + 1 + count], hidden], -1))
            hidden = self.layers[0](joined, joined, keys, values)
            logits.append(F.linear(hidden, self.head))
        return logits


class Midlayer(DraftLayer):
    """EAGLE-3's decoder layer: attention reads the next token's embedding and the hidden state, both normed."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config, 2 * config.hidden_size)
        self.input_layernorm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.hidden_norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(
        self, hidden: torch.Tensor, embedded: torch.Tensor, keys: list[torch.Tensor], values: list[torch.Tensor]
    ) -> torch.Tensor:
        both = torch.cat([self.input_layernorm(embedded), self.hidden_norm(hidden)], -1)
        return super().forward(hidden, both, keys, values)


class Eagle3Net(nn.Module):
    """Fuses three layers of the target, then drafts on its own output, as EAGLE's net does.

    `aux_layers` count the target's decoder layers from 0 and mean their outputs; `target_ids` are the draft
    vocabulary, ascending. The embedding is the target's, and the head begins as the target's.
    """

    def __init__(
        self, config: LlamaConfig, aux_layers: list[int], target: LlamaForCausalLM, target_ids: torch.Tensor, steps: int
    ) -> None:
        super().__init__()
        self.steps, self.aux_layers = steps, aux_layers
        self.fc = nn.Linear(len(aux_layers) * config.hidden_size, config.hidden_size, bias=False)
        self.midlayer = Midlayer(config)
        self.norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, len(target_ids), bias=False)
        self.lm_head.weight.data.copy_(target.lm_head.weight[target_ids])
        embeddings = target.model.embed_tokens.weight.detach()
        self.register_buffer("embeddings", embeddings, persistent=False)
        self.register_buffer("d2t", target_ids - torch.arange(len(target_ids)))
        self.register_buffer("t2d", torch.zeros(len(embeddings), dtype=torch.bool).index_fill(0, target_ids, True))

    @property
    def vocab(self) -> torch.Tensor:
        return self.t2d

    def forward(self, tokens: torch.Tensor, hidden_states: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
        count = tokens.shape[1] - self.steps
        hidden = self.fc(torch.cat([hidden_states[layer + 1][:, :count] for layer in self.aux_layers], -1))
        embedded, keys, values, logits = self.embeddings[tokens], [], [], []
        for step in range(self.steps):
            hidden = self.midlayer(hidden, embedded[:, step + 1 : step + 1 + count], keys, values)
            logits.append(self.lm_head(self.norm(hidden)))
        return logits
