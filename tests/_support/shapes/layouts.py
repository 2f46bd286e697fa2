# SPDX-License-Identifier: Apache-2.0
"""Tensors of published checkpoints by layout, with the names and shapes of the publishing projects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

Config = dict[str, Any]

NORMS = ("input_layernorm", "post_attention_layernorm")
INNER_NORMS = ("pre_feedforward_layernorm", "post_feedforward_layernorm")


@dataclass(frozen=True)
class Tensor:
    """A tensor; without a `dtype` it has its checkpoint's. `data` are its first bytes, the rest is zero."""

    name: str
    shape: tuple[int, ...]
    dtype: str = ""
    data: bytes = b""

    def of(self, dtype: str) -> Tensor:
        """Return the tensor with a dtype."""
        return replace(self, dtype=dtype)


def decoder(config: Config) -> Iterator[Tensor]:
    """Yield the tensors of a causal language model of any supported family, as saved by transformers."""
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    yield Tensor("model.embed_tokens.weight", (vocab, hidden))
    for number in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{number}."
        yield from attention(config, f"{prefix}self_attn.", hidden)
        yield from (
            experts(config, f"{prefix}block_sparse_moe.")
            if "num_local_experts" in config
            else mlp(config, f"{prefix}mlp.")
        )
        for norm in (*NORMS, *(INNER_NORMS if "gemma" in config.get("model_type", "") else ())):
            yield Tensor(f"{prefix}{norm}.weight", (hidden,))
    yield Tensor("model.norm.weight", (hidden,))
    if not config.get("tie_word_embeddings", False):
        yield Tensor("lm_head.weight", (vocab, hidden))


def attention(config: Config, prefix: str, width: int) -> Iterator[Tensor]:
    """Yield the projections of a layer whose attention input has `width` elements."""
    heads = config["num_attention_heads"]
    size = config.get("head_dim") or config["hidden_size"] // heads
    rows = {"q": heads * size, "k": config.get("num_key_value_heads", heads) * size}
    rows["v"] = rows["k"]
    if config.get("model_type") == "phi3":
        yield Tensor(f"{prefix}qkv_proj.weight", (sum(rows.values()), width))
        rows = {}
    for name, count in rows.items():
        yield Tensor(f"{prefix}{name}_proj.weight", (count, width))
        if config.get("model_type") == "qwen2":
            yield Tensor(f"{prefix}{name}_proj.bias", (count,))
    yield Tensor(f"{prefix}o_proj.weight", (config["hidden_size"], heads * size))
    if config.get("model_type") in ("qwen3", "gemma3_text"):
        yield from (Tensor(f"{prefix}{name}_norm.weight", (size,)) for name in "qk")


def mlp(config: Config, prefix: str) -> Iterator[Tensor]:
    """Yield the gated MLP of a layer."""
    hidden, inter = config["hidden_size"], config["intermediate_size"]
    if config.get("model_type") == "phi3":
        yield Tensor(f"{prefix}gate_up_proj.weight", (2 * inter, hidden))
    else:
        yield Tensor(f"{prefix}gate_proj.weight", (inter, hidden))
        yield Tensor(f"{prefix}up_proj.weight", (inter, hidden))
    yield Tensor(f"{prefix}down_proj.weight", (hidden, inter))


def experts(config: Config, prefix: str) -> Iterator[Tensor]:
    """Yield Mixtral's router and experts."""
    hidden, inter, count = config["hidden_size"], config["intermediate_size"], config["num_local_experts"]
    yield Tensor(f"{prefix}gate.weight", (count, hidden))
    for number in range(count):
        for name, shape in (("w1", (inter, hidden)), ("w2", (hidden, inter)), ("w3", (inter, hidden))):
            yield Tensor(f"{prefix}experts.{number}.{name}.weight", shape)


def medusa(config: Config) -> Iterator[Tensor]:
    """Yield Medusa 0.1's heads; published configs specify 2, but there are 5."""
    hidden, vocab, layers = config["hidden_size"], config["vocab_size"], config["medusa_num_layers"]
    for head in range(5):
        for layer in range(layers):
            yield Tensor(f"{head}.{layer}.linear.weight", (hidden, hidden))
            yield Tensor(f"{head}.{layer}.linear.bias", (hidden,))
        yield Tensor(f"{head}.{layers}.weight", (vocab, hidden))


def eagle(config: Config) -> Iterator[Tensor]:
    """Yield a net of EAGLE-1 and EAGLE-2: its first layer has no input norm, and `bias` refers to `fc`."""
    hidden = config["hidden_size"]
    yield Tensor("embed_tokens.weight", (config["vocab_size"], hidden))
    yield from attention(config, "layers.0.self_attn.", hidden)
    yield from mlp(config, "layers.0.mlp.")
    yield Tensor("layers.0.post_attention_layernorm.weight", (hidden,))
    yield Tensor("fc.weight", (hidden, 2 * hidden))
    if config.get("bias", True):
        yield Tensor("fc.bias", (hidden,))


def redrafter(config: Config) -> Iterator[Tensor]:
    """Yield the drafter of apple/ml-recurrent-drafter, without recurrence and wide enough to need no first layer."""
    exit_dim, layers = config["exit_dim"], config["num_draft_layers"]
    for layer in range(layers):
        yield Tensor(f"lm_head.{layer}.linear.weight", (exit_dim, exit_dim))
        yield Tensor(f"lm_head.{layer}.linear.bias", (exit_dim,))
    yield Tensor(f"lm_head.{layers}.weight", (config["vocab_size"], exit_dim))


def eagle3(config: Config) -> Iterator[Tensor]:
    """Yield an EAGLE-3 head as saved by SafeAILab and SpecForge: the embedding is the target's."""
    yield from _eagle3_head(config, "midlayer.")
    yield from _id_tables(config["draft_vocab_size"], config["vocab_size"])


def speculators_eagle3(config: Config) -> Iterator[Tensor]:
    """Yield an EAGLE-3 head as saved by speculators, with its own embedding."""
    layer = config["transformer_layer_config"]
    yield Tensor("embed_tokens.weight", (layer["vocab_size"], layer["hidden_size"]))
    yield from _eagle3_head(layer | {"draft_vocab_size": config["draft_vocab_size"]}, "layers.0.")
    yield from _id_tables(config["draft_vocab_size"], layer["vocab_size"])


def _eagle3_head(config: Config, prefix: str) -> Iterator[Tensor]:
    """Yield the common tensors: attention over embedding and hidden state, and `fc` for three target states."""
    hidden = config["hidden_size"]
    yield Tensor("fc.weight", (hidden, 3 * hidden))
    yield from attention(config, f"{prefix}self_attn.", 2 * hidden)
    yield from mlp(config, f"{prefix}mlp.")
    for norm in ("hidden_norm", "input_layernorm", "post_attention_layernorm"):
        yield Tensor(f"{prefix}{norm}.weight", (hidden,))
    yield Tensor("norm.weight", (hidden,))
    yield Tensor("lm_head.weight", (config["draft_vocab_size"], hidden))


def _id_tables(drafted: int, vocab: int) -> Iterator[Tensor]:
    """Yield the tables of a net that drafts the target's first ids: the offset of each, and a mask of the ids."""
    yield Tensor("d2t", (drafted,), "I64")
    yield Tensor("t2d", (vocab,), "BOOL", bytes([1]) * drafted)


LAYOUTS: dict[str, Callable[[Config], Iterator[Tensor]]] = {
    "decoder": decoder,
    "medusa": medusa,
    "eagle": eagle,
    "redrafter": redrafter,
    "eagle3": eagle3,
    "speculators_eagle3": speculators_eagle3,
}
