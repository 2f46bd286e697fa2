# SPDX-License-Identifier: Apache-2.0
"""Sizes of a decoder that determine its memory use, read from its config alone, for any architecture.

Supports grouped-query attention, latent attention (MLA), sliding windows, linear attention, experts, and configs with a
nested section for the text model. Keys are named as in transformers' config classes.
"""

from __future__ import annotations

from dataclasses import dataclass

from trtspec.checkpoints.model_config import ConfigReader
from trtspec.checkpoints.source import Source

TEXT_SECTIONS = ("text_config", "llm_config", "language_config")
LINEAR, WINDOWS = "linear_attention", ("sliding_attention", "chunked_attention")
# Defaults of text model classes for keys that published configs omit (transformers 5, configuration_gemma3.py).
DEFAULTS = {
    "gemma3_text": {
        "vocab_size": 262_208,
        "max_position_embeddings": 131_072,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "sliding_window_pattern": 6,
        "tie_word_embeddings": True,
    }
}
EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts")  # Qwen; Mixtral, Llama 4, gpt-oss; DeepSeek
STATE_ITEM_BYTES = 4  # linear attention accumulates its state in float32


@dataclass(frozen=True)
class LayerCache:
    """KV cache of one layer: `numbers` values per token and head, for the last `window` tokens or, if 0, for all.

    `heads` is 0 for a latent vector (MLA), which every rank of a tensor-parallel group stores whole.
    """

    heads: int
    numbers: int
    window: int = 0

    def numbers_per_text(self, tokens: int, tensor: int) -> int:
        """Return the number of values that one of `tensor` ranks caches for a text; a rank has at least one head."""
        heads = max(1, self.heads // tensor)
        return min(tokens, self.window or tokens) * heads * self.numbers


@dataclass(frozen=True)
class MemoryProfile:
    """Sizes of a decoder that determine its memory use.

    Linear attention stores `state_heads` * `state_numbers` values per sequence, independent of its length.
    `active_width` is the MLP width computed for each token, and `kept_numbers` the number of values in embedding and LM
    head. Each token uses `experts_per_token` of a layer's `num_experts`; both are 0 if all layers are dense.
    """

    hidden_size: int
    vocab_size: int
    max_positions: int
    attention_width: int
    active_width: int
    kept_numbers: int
    layers: tuple[LayerCache, ...]
    state_heads: int = 0
    state_numbers: int = 0
    num_layers: int = 1
    num_experts: int = 0
    experts_per_token: int = 0

    def cache_bytes(self, texts: int, tokens: int, tensor: int, item_bytes: int) -> int:
        numbers = sum(layer.numbers_per_text(tokens, tensor) for layer in self.layers)
        return texts * (numbers * item_bytes + self.state_heads // tensor * self.state_numbers * STATE_ITEM_BYTES)


def read_memory_profile(source: Source) -> MemoryProfile:
    """Read the memory profile from a source's config; raise CheckpointError if a size is missing or invalid."""
    text = read_text_config(source)
    hidden, vocab, heads = (
        text.positive("hidden_size"),
        text.positive("vocab_size"),
        text.positive("num_attention_heads"),
    )
    kinds, size = _kinds(text), text.positive("head_dim", max(1, hidden // heads))
    kv_heads = text.positive("num_key_value_heads", heads)
    tied = text.get("tie_word_embeddings", bool, source.reader.get("tie_word_embeddings", bool, False))
    count = next((text.positive(key) for key in EXPERT_COUNTS if text.values.get(key)), 0)
    linear = kinds.count(LINEAR) * text.positive("linear_num_value_heads", 1)
    return MemoryProfile(
        hidden_size=hidden,
        vocab_size=vocab,
        max_positions=text.positive("max_position_embeddings"),
        attention_width=(heads + 2 * kv_heads) * size,
        active_width=_active_width(text),
        kept_numbers=vocab * hidden * (1 if tied else 2),
        layers=tuple(_cache(text, kind, kv_heads, size) for kind in kinds if kind != LINEAR),
        state_heads=linear,
        state_numbers=text.positive("linear_key_head_dim", 1) * text.positive("linear_value_head_dim", 1),
        num_layers=text.positive("num_hidden_layers"),
        num_experts=count,
        experts_per_token=text.positive("num_experts_per_tok", 1) if count else 0,
    )


def read_text_config(source: Source) -> ConfigReader:
    """Return the text model's section of a config, completed with the defaults of its class."""
    text = next(filter(None, map(source.reader.section, TEXT_SECTIONS)), source.reader)
    return ConfigReader(DEFAULTS.get(str(text.values.get("model_type")), {}) | text.values, text.where)


def _kinds(text: ConfigReader) -> list[str]:
    """Return each layer's kind of attention in transformers' names, without layers that reuse another layer's cache."""
    count = text.positive("num_hidden_layers", most=10_000)
    kinds = text.get("layer_types", list, [])
    if not kinds:
        every, other = text.positive("full_attention_interval", 1), LINEAR
        if text.values.get("sliding_window_pattern"):
            every, other = text.positive("sliding_window_pattern"), WINDOWS[0]
        kinds = ["full_attention" if (number + 1) % every == 0 else other for number in range(count)]
    if len(kinds) != count or not all(isinstance(kind, str) for kind in kinds):
        raise text.refuse_value(f"layer_types are not {count} names")
    return kinds[: count - text.get("num_kv_shared_layers", int, 0)]


def _cache(text: ConfigReader, kind: str, kv_heads: int, size: int) -> LayerCache:
    if text.values.get("kv_lora_rank"):
        return LayerCache(0, text.positive("kv_lora_rank") + text.positive("qk_rope_head_dim"))
    if kind in WINDOWS:
        window = "sliding_window" if kind == WINDOWS[0] else "attention_chunk_size"
        return LayerCache(kv_heads, 2 * size, text.positive(window))
    size, kv_heads = text.positive("global_head_dim", size), text.positive("num_global_key_value_heads", kv_heads)
    return LayerCache(kv_heads, 2 * size)


def _active_width(text: ConfigReader) -> int:
    """Return the MLP width computed for a token: of a dense layer, or of all its experts together."""
    dense, experts = text.positive("intermediate_size", 1), text.positive("num_experts_per_tok", 1)
    return max(dense, experts * text.positive("moe_intermediate_size", dense))
