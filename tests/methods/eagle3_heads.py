# SPDX-License-Identifier: Apache-2.0
"""Sources of EAGLE-3 heads, random and fitted to a model's texts, and a reference implementation of their formula.

A head consists of tensors with the names of ModelOpt and speculators, and the config.json of its layer.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from tests._support.tiny import SHAPE, convert
from trtspec.methods.draft_head import load_head

Tensors = dict[str, Tensor]
AUX = "eagle_aux_hidden_state_layer_ids"
# differs from the default of config.json
ROPE = {"rope_type": "default", "rope_theta": 5000.0}


@dataclass(frozen=True)
class Eagle3Tensors:
    """A head; `aux` are the target's layers whose outputs are read, `flags` are keys that change the computation."""

    tensors: Tensors
    layer: dict[str, Any]
    aux: tuple[int, ...]
    drafted: int
    flags: dict[str, bool] = field(default_factory=dict)

    def changed(self, **tensors: Tensor | None) -> Eagle3Tensors:
        """Return the head with changed or removed (None) tensors, named with _ for dots."""
        named = {name.replace("__", "."): tensor for name, tensor in tensors.items()}
        kept = {name: tensor for name, tensor in {**self.tensors, **named}.items() if tensor is not None}
        return replace(self, tensors=kept)

    @property
    def target_ids(self) -> Tensor:
        """Return the target's id of each drafted token."""
        ids = torch.arange(self.drafted)
        return ids + self.tensors["d2t"] if "d2t" in self.tensors else ids


def random_head(
    aux: Sequence[int] = (0, 1), *, drafted: int = 40, seed: int = 3, scale: float = 0.3, bias: bool = False,
    qk_norm: bool = False, own_embedding: bool = False, target: dict[str, Any] | None = None, **flags: bool,
) -> Eagle3Tensors:  # fmt: skip
    """Return a random head for a target of `tiny.SHAPE`, changed by `target`, with a draft vocabulary."""
    shape = {**SHAPE, "head_dim": 8, "intermediate_size": 40, **(target or {})}
    hidden, vocab, inter, size = (shape[key] for key in ("hidden_size", "vocab_size", "intermediate_size", "head_dim"))
    heads, kv_heads = shape["num_attention_heads"], shape["num_key_value_heads"]
    draw = torch.Generator().manual_seed(seed)

    def matrix(*shape: int) -> Tensor:
        return (torch.randn(*shape, generator=draw) * scale).bfloat16()

    def norm(width: int) -> Tensor:
        return (1 + torch.randn(width, generator=draw) * 0.2).bfloat16()

    tensors = {"fc.weight": matrix(hidden, len(aux) * hidden), "norm.weight": norm(hidden)}
    for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm"):
        tensors[f"layers.0.{name}.weight"] = norm(hidden)
    rows = {"q": heads * size, "k": kv_heads * size, "v": kv_heads * size}
    for name, count in rows.items():
        tensors[f"layers.0.self_attn.{name}_proj.weight"] = matrix(count, 2 * hidden)
        if bias:
            tensors[f"layers.0.self_attn.{name}_proj.bias"] = matrix(count)
    if qk_norm:
        tensors |= {f"layers.0.self_attn.{name}_norm.weight": norm(size) for name in "qk"}
    tensors["layers.0.self_attn.o_proj.weight"] = matrix(hidden, heads * size)
    tensors |= {f"layers.0.mlp.{name}_proj.weight": matrix(inter, hidden) for name in ("gate", "up")}
    tensors["layers.0.mlp.down_proj.weight"] = matrix(hidden, inter)
    tensors["lm_head.weight"] = matrix(drafted, hidden)
    if flags.get("norm_before_fc"):
        tensors["input_norm.weight"] = norm(len(aux) * hidden)
    if flags.get("fc_norm"):
        tensors |= {f"fc_norm.{number}.weight": norm(hidden) for number in range(len(aux))}
    if own_embedding:
        tensors["embed_tokens.weight"] = matrix(vocab, hidden)
    if drafted < vocab:
        ids = torch.randperm(vocab, generator=draw)[:drafted].sort().values
        tensors["d2t"] = ids - torch.arange(drafted)
        tensors["t2d"] = torch.zeros(vocab, dtype=torch.bool).index_fill(0, ids, True)
    keys = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim",
            "vocab_size", "max_position_embeddings")  # fmt: skip
    layer = {key: shape[key] for key in keys} | {
        "rms_norm_eps": 1e-5,
        "rope_theta": ROPE["rope_theta"],
        "num_hidden_layers": 1,
    }
    return Eagle3Tensors(tensors, layer, tuple(aux), drafted, flags)


def save_head(head: Eagle3Tensors, root: Path, layout: str = "specforge", **config: Any) -> Path:
    """Save a head in one of the public layouts; `config` are additional keys of config.json, None removes a key."""
    flat = {
        **head.layer,
        "draft_vocab_size": head.drafted,
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        **head.flags,
    }
    outputs = {"eagle_config": {AUX: list(head.aux), "use_aux_hidden_state": True}}
    tensors = dict(head.tensors)
    if layout == "original":
        written = {"architectures": ["LlamaForCausalLM"], **flat}
        assert head.aux == (1, 2, 3), "the original has no key for the layers"
    elif layout == "specforge":
        written = {"architectures": ["LlamaForCausalLMEagle3"], **flat, **outputs}
    elif layout in ("modelopt", "module"):
        written = {"architectures": ["LlamaForCausalLMEagle3"], **flat, **outputs}
        tensors.pop("t2d", None)
    else:
        written = {
            "architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3", "draft_vocab_size": head.drafted,
            "transformer_layer_config": {"model_type": "llama", **head.layer}, AUX: [after + 1 for after in head.aux],
            "speculators_config": {"algorithm": "eagle3"}, **head.flags,
        }  # fmt: skip
        tensors["verifier_norm.weight"] = torch.ones(3)
    if layout in ("original", "specforge"):
        tensors = {name.replace("layers.0.", "midlayer."): tensor for name, tensor in tensors.items()}
    if layout == "module":
        tensors = {f"eagle_module.{name}": tensor for name, tensor in tensors.items()}
    root.mkdir(parents=True)
    written = {key: value for key, value in {**written, **config}.items() if value is not None}
    (root / "config.json").write_text(json.dumps(written))
    save_file(tensors, root / "model.safetensors")
    return root


def convert_with(source: Path, head: Path, out: Path, **how: Any) -> Path:
    """Convert a model together with the head at `head`."""
    return convert(source, out, load_head=lambda target: load_head(head, "eagle3", {}, target), **how)


@torch.inference_mode()
def aux_states(model: Any, text: Sequence[int], aux: Sequence[int]) -> Tensor:
    """Return the concatenated outputs of layers of transformers' model, [len(text), layers * hidden]."""
    kept: dict[int, Tensor] = {}

    def keep(number: int) -> Any:
        def hook(module: Any, given: Any, output: Any) -> None:
            kept[number] = (output if torch.is_tensor(output) else output[0]).reshape(len(text), -1)

        return hook

    hooks = [model.model.layers[number].register_forward_hook(keep(number)) for number in aux]
    model(torch.tensor([list(text)]))
    for hook in hooks:
        hook.remove()
    return torch.cat([kept[number] for number in aux], -1)


class Formula:
    """The paper's drafting step, in float32 and over the whole text every time."""

    def __init__(self, head: Eagle3Tensors, embedding: Tensor, lm_head: Tensor) -> None:
        self.head = head
        self.wide = {name: tensor.float() for name, tensor in head.tensors.items() if name not in ("d2t", "t2d")}
        self.embedding = self.wide.get("embed_tokens.weight", embedding)
        self.lm_head = self.wide.get("lm_head.weight", lm_head)

    def norm(self, rows: Tensor, name: str) -> Tensor:
        """Normalize rows by their root mean square."""
        scale = torch.rsqrt(rows.pow(2).mean(-1, keepdim=True) + self.head.layer["rms_norm_eps"])
        return rows * scale * self.wide[f"{name}.weight"]

    def fuse(self, states: Tensor) -> Tensor:
        """Return features for the target's hidden states [n, layers * hidden]."""
        if self.head.flags.get("norm_before_fc"):
            states = self.norm(states, "input_norm")
        if self.head.flags.get("fc_norm"):
            chunks = states.chunk(len(self.head.aux), -1)
            states = torch.cat([self.norm(chunk, f"fc_norm.{number}") for number, chunk in enumerate(chunks)], -1)
        return F.linear(states, self.wide["fc.weight"])

    def step(self, tokens: Sequence[int], features: Tensor) -> Tensor:
        """Return the features after pairs of tokens and features [n, hidden], the first at position 0."""
        embedded = self.norm(self.embedding[list(tokens)], "layers.0.input_layernorm")
        normed = self.norm(features, "layers.0.hidden_norm")
        residual = normed if self.head.flags.get("norm_before_residual") else features
        hidden = residual + self._attention(torch.cat([embedded, normed], -1))
        inner = self.norm(hidden, "layers.0.post_attention_layernorm")
        gate, up, down = (self.wide[f"layers.0.mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
        hidden = hidden + F.linear(F.silu(F.linear(inner, gate)) * F.linear(inner, up), down)
        return self.norm(hidden, "norm") if self.head.flags.get("norm_output") else hidden

    def logits(self, features: Tensor) -> Tensor:
        """Return the draft's logits after features."""
        return (features if self.head.flags.get("norm_output") else self.norm(features, "norm")) @ self.lm_head.T

    def _attention(self, both: Tensor) -> Tensor:
        layer, own = self.head.layer, "layers.0.self_attn"
        size, count = layer["head_dim"], len(both)
        angles = torch.arange(count)[:, None] / layer["rope_theta"] ** (torch.arange(0, size, 2) / size)
        turn = torch.cat([angles, angles], -1)[:, None]

        def heads(name: str) -> Tensor:
            bias = self.wide.get(f"{own}.{name}_proj.bias")
            rows = F.linear(both, self.wide[f"{own}.{name}_proj.weight"], bias).view(count, -1, size)
            if name == "v":
                return rows
            if f"{own}.{name}_norm.weight" in self.wide:
                rows = self.norm(rows, f"{own}.{name}_norm")
            first, second = rows.chunk(2, -1)
            return rows * turn.cos() + torch.cat([-second, first], -1) * turn.sin()

        query, key, value = (heads(name) for name in "qkv")
        group = query.shape[1] // key.shape[1]
        key, value = (kind.repeat_interleave(group, 1) for kind in (key, value))
        scores = torch.einsum("qhd,khd->hqk", query, key) / size**0.5
        scores = scores.masked_fill(torch.ones(count, count, dtype=torch.bool).triu(1), -torch.inf)
        mixed = torch.einsum("hqk,khd->qhd", scores.softmax(-1), value).flatten(1)
        return F.linear(mixed, self.wide[f"{own}.o_proj.weight"], self.wide.get(f"{own}.o_proj.bias"))

    def draft(self, text: Sequence[int], states: Tensor, path: Sequence[int]) -> Tensor:
        """Return the draft's logits after a text and a drafted `path` of the target's ids.

        `states` [len(text) - 1 or more, layers * hidden] are the target's; the states of the last token are not used.
        """
        tokens, features = list(text[1:]), self.fuse(states[: len(text) - 1])
        for token in path:
            features = torch.cat([features, self.step(tokens, features)[-1:]])
            tokens.append(token)
        return self.logits(self.step(tokens, features)[-1])


@torch.inference_mode()
def formula_of(head: Eagle3Tensors, model: Any) -> Formula:
    """Return the formula of a head, with missing tensors from transformers' model."""
    return Formula(head, model.get_input_embeddings().weight, model.get_output_embeddings().weight)


@torch.inference_mode()
def knowing_head(head: Eagle3Tensors, model: Any, texts: Sequence[Sequence[int]], steps: int = 3) -> Eagle3Tensors:
    """Return the head with an LM head fitted by least squares to the next tokens of the texts at each draft step."""
    formula, hidden, follows = formula_of(head, model), [], []
    column = {int(token): number for number, token in enumerate(head.target_ids)}
    for text in texts:
        states = aux_states(model, text, head.aux)
        for end in range(2, len(text) - steps):
            tokens, features = list(text[1:end]), formula.fuse(states[: end - 1])
            for token in text[end : end + steps]:
                after = formula.step(tokens, features)[-1:]
                if token in column:
                    hidden.append(after if head.flags.get("norm_output") else formula.norm(after, "norm"))
                    follows.append(column[token])
                tokens.append(token)
                features = torch.cat([features, after])
    wanted = F.one_hot(torch.tensor(follows), head.drafted).float()
    lm_head = torch.linalg.lstsq(torch.cat(hidden), wanted).solution.T.contiguous()
    return head.changed(lm_head__weight=lm_head.bfloat16())
