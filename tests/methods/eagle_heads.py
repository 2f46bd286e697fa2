# SPDX-License-Identifier: Apache-2.0
"""Sources of EAGLE heads, and a slow reference for their drafts: one transformers pass over all pairs per token."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from tests._support.tiny import SHAPE, convert
from trtspec.methods.draft_head import load_head

Tensors = dict[str, Tensor]
Tokens = tuple[int, ...]
HIDDEN, VOCAB = SHAPE["hidden_size"], SHAPE["vocab_size"]
# a layer with other sizes than the target's
LAYER = {"num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 24, "num_hidden_layers": 1}
BLOCK = "layers.0"
# differs from the default of config.json
ROPE = {"rope_type": "default", "rope_theta": 5000.0}


def random_head(
    hidden: int = HIDDEN, seed: int = 5, scale: float = 0.2, bias: bool = False, copies: float = 0.0
) -> Tensors:
    """Return a random head's tensors with the reference's names; `copies` is the share of the embedding it copies.

    A head that only copies agrees with a target whose output depends only on the last token.
    """
    draw = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw) * scale

    kv, inner = hidden // 2, LAYER["intermediate_size"]
    tensors = {
        "fc.weight": random(hidden, 2 * hidden) + copies * torch.eye(hidden, 2 * hidden),
        f"{BLOCK}.self_attn.q_proj.weight": random(hidden, hidden),
        f"{BLOCK}.self_attn.k_proj.weight": random(kv, hidden),
        f"{BLOCK}.self_attn.v_proj.weight": random(kv, hidden),
        f"{BLOCK}.self_attn.o_proj.weight": random(hidden, hidden),
        f"{BLOCK}.mlp.gate_proj.weight": random(inner, hidden),
        f"{BLOCK}.mlp.up_proj.weight": random(inner, hidden),
        f"{BLOCK}.mlp.down_proj.weight": random(hidden, inner),
        f"{BLOCK}.post_attention_layernorm.weight": 1 + random(hidden),
    }
    if bias:
        tensors["fc.bias"] = random(hidden)
    return {name: tensor.bfloat16() for name, tensor in tensors.items()}


def config_of(hidden: int = HIDDEN, vocab: int = VOCAB, **differences: Any) -> dict[str, Any]:
    """Return a head's config.json."""
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-5,
        "rope_theta": ROPE["rope_theta"], "max_position_embeddings": 256, "bias": False,
        "hidden_size": hidden, "vocab_size": vocab, **LAYER,
    } | differences  # fmt: skip


def save_head(root: Path, tensors: Tensors, **config: Any) -> Path:
    """Save a head; `config` is as in config_of."""
    root.mkdir(parents=True)
    (root / "config.json").write_text(json.dumps(config_of(**config)))
    save_file(tensors, root / "model.safetensors")
    return root


def convert_with(source: Path, head_root: Path, out: Path, options: dict[str, Any], **how: Any) -> Path:
    """Convert a model together with the head at `head_root`."""
    return convert(source, out, load_head=lambda target: load_head(head_root, "eagle", options, target), **how)


class Oracle:
    """The drafts of a head for a target, both as transformers models, without cache and batch."""

    def __init__(self, target: Any, tensors: Tensors) -> None:
        from transformers import LlamaConfig, LlamaModel

        config = config_of(target.config.hidden_size, target.config.vocab_size)
        del config["rope_theta"]
        self._head = LlamaModel(LlamaConfig(**config, rope_parameters=ROPE))
        wide = {name: tensor.float() for name, tensor in tensors.items()}
        missing = self._head.load_state_dict(wide, strict=False).missing_keys
        assert missing == ["embed_tokens.weight", f"{BLOCK}.input_layernorm.weight", "norm.weight"]
        self._head.layers[0].input_layernorm = torch.nn.Identity()
        self._head.norm = torch.nn.Identity()
        self._fc, self._bias = wide["fc.weight"], wide.get("fc.bias", torch.zeros(len(wide["fc.weight"])))
        self._target = target
        self._known: dict[tuple[Tokens, Tokens], Tensor] = {}

    @torch.inference_mode()
    def logits(self, text: Tokens, path: Tokens) -> Tensor:
        """Return the head's logits after a text and a drafted path."""
        logits: Tensor = self._target.lm_head(self._feature(text, path))
        return logits

    def _feature(self, text: Tokens, path: Tokens) -> Tensor:
        """Return the head's last feature over all pairs; the target's features exclude the text's last token."""
        if (text, path) not in self._known:
            features = [*self._target.model(torch.tensor([text])).last_hidden_state[0, :-1]]
            features += [self._feature(text, path[:length]) for length in range(len(path))]
            embedded = self._target.get_input_embeddings()(torch.tensor([*text[1:], *path]))
            joined = torch.cat([embedded, torch.stack(features)], 1) @ self._fc.T + self._bias
            self._known[text, path] = self._head(inputs_embeds=joined.unsqueeze(0)).last_hidden_state[0, -1]
        return self._known[text, path]

    def static(self, text: Tokens, choices: Sequence[Tokens]) -> list[Tokens]:
        """Return the tokens on the path to each choice, shorter choices first."""
        found: dict[Tokens, Tokens] = {(): ()}
        for choice in sorted(choices, key=lambda choice: (len(choice), choice)):
            above = found[choice[:-1]]
            ranked = self.logits(text, above).argsort(descending=True).tolist()
            found[choice] = (*above, ranked[choice[-1]])
        return list(found.values())[1:]

    def dynamic(self, text: Tokens, top_k: int, depth: int, nodes: int) -> list[Tokens]:
        """Return the tokens on the path to each of the best nodes, in ranking order."""
        ranked: dict[Tokens, float] = {}
        frontier = {(): 0.0}
        for _ in range(depth):
            level = {}
            for path, score in frontier.items():
                best = self.logits(text, path).log_softmax(0).topk(top_k)
                for token, more in zip(best.indices.tolist(), best.values.tolist(), strict=True):
                    level[(*path, token)] = score + more
            frontier = dict(sorted(level.items(), key=lambda item: -item[1])[:top_k])
            ranked |= level
        best_paths = dict(sorted(ranked.items(), key=lambda item: -item[1])[:nodes])
        return [path for path in ranked if path in best_paths]
