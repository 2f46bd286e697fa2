# SPDX-License-Identifier: Apache-2.0
"""Model configuration independent of Hugging Face's and TensorRT-LLM's config formats."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from trtspec.core.diagnostics import quote_value
from trtspec.core.errors import CheckpointError, UnsupportedModel

MAX_MESSAGE = 2000
UNCONVERTED = "choose an engine.backend that runs the checkpoint without conversion"

T = TypeVar("T")


@dataclass(frozen=True)
class RopeScaling:
    """RoPE frequency scaling; `kind` is Hugging Face's `rope_type`, the other fields are its parameters.

    `factor` divides low frequencies: all of them for "linear", and none for "dynamic" up to the model's own positions.
    "llama3" uses the two `freq_factor`s: wavelengths below `original_max_position / high_freq_factor` stay, those above
    `original_max_position / low_freq_factor` are stretched, and those between are interpolated. "yarn" uses the
    remaining fields: frequencies that turn more than `beta_fast` times over `original_max_position` stay, those that
    turn less than `beta_slow` times are stretched, and sines and cosines are multiplied by `attention_factor`.
    "longrope" uses `attention_factor` too, and divides each frequency by its entry in `short_factors`, or in
    `long_factors` for texts beyond `original_max_position`.
    """

    kind: str
    factor: float
    original_max_position: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 1.0
    truncate: bool = True
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()


def stretch(scaling: RopeScaling | None, max_positions: int) -> int:
    """Return the number of positions that a RoPE scaling supports, at least `max_positions`.

    Linear and dynamic scaling multiply the model's own positions, YaRN the original ones. The other kinds support the
    positions of config.json.
    """
    if scaling is None or scaling.kind not in ("linear", "dynamic", "yarn"):
        return max_positions
    original = scaling.original_max_position if scaling.kind == "yarn" else max_positions
    return max(max_positions, int(original * scaling.factor))


@dataclass(frozen=True)
class ModelConfig:
    """A decoder-only transformer with rotary positions and gated MLP, dense or a mixture of experts.

    `attn_bias` is for queries, keys and values, `dense_bias` for the attention's output. `num_experts` is 0 for a dense
    MLP; `intermediate_size` is the size of one expert. `hidden_act` is "swiglu" instead of "silu" if `mlp.fc` contains
    both branches, as in TensorRT-LLM. `sliding_window` is the attention span, 0 for unlimited; `full_layers` are
    unlimited in any case. Layers with a window use `local_rotary_base`, unscaled, if it is not 0. `rotary_share` is the
    rotated part of each head.

    `input_norms` normalize the inputs of attention and MLP, and `inner_norms` their outputs before the residual
    addition. With `qk_norm`, queries and keys are normalized per head, or over all heads with `qk_norm_over_heads`.
    `scaled_embedding` multiplies embeddings by the square root of the hidden size. Scores are divided by the square
    root of `query_scalar`, or of the head size if it is 0. A cap that is not 0 replaces scores or logits x by cap *
    tanh(x / cap). The multipliers apply to embeddings, scores, the outputs of attention and MLP, and logits. `extra`
    contains keys that only the family's TensorRT-LLM config class reads.
    """

    architecture: str
    dtype: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    intermediate_size: int
    hidden_act: str
    norm_epsilon: float
    max_positions: int
    rotary_base: float
    rope_scaling: RopeScaling | None
    attn_bias: bool
    mlp_bias: bool
    tied_embeddings: bool
    dense_bias: bool = False
    qk_norm: bool = False
    num_experts: int = 0
    experts_per_token: int = 0
    sliding_window: int = 0
    full_layers: tuple[int, ...] = ()
    local_rotary_base: float = 0.0
    rotary_share: float = 1.0
    qk_norm_over_heads: bool = False
    input_norms: bool = True
    inner_norms: bool = False
    scaled_embedding: bool = False
    query_scalar: float = 0.0
    attention_cap: float = 0.0
    logit_cap: float = 0.0
    embedding_multiplier: float = 1.0
    attention_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    logit_multiplier: float = 1.0
    extra: tuple[tuple[str, str | int | float], ...] = ()

    @property
    def num_parameters(self) -> int:
        """Return the number of weights; a tied embedding counts once."""
        heads = (self.num_heads + 2 * self.num_kv_heads) * self.head_size
        attention = heads * self.hidden_size + self.num_heads * self.head_size * self.hidden_size
        attention += heads * self.attn_bias + self.hidden_size * self.dense_bias + sum(self.qk_norm_sizes)
        mlp = 3 * self.hidden_size * self.intermediate_size
        mlp += (2 * self.intermediate_size + self.hidden_size) * self.mlp_bias
        mlp = mlp * max(1, self.num_experts) + self.num_experts * self.hidden_size
        norms = sum(map(bool, self.sublayer_norms)) * self.hidden_size
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tied_embeddings else 2)
        return embeddings + self.num_layers * (attention + mlp + norms) + self.hidden_size

    @property
    def sublayer_norms(self) -> tuple[str, str, str, str]:
        """Return a layer's norms: attention input, attention output, MLP input, MLP output; "" if absent."""
        if not self.inner_norms:
            return "input_layernorm", "", "post_layernorm", ""
        before = ("input_layernorm", "pre_feedforward_layernorm") if self.input_norms else ("", "")
        return before[0], "post_layernorm", before[1], "post_feedforward_layernorm"

    @property
    def qk_norm_sizes(self) -> tuple[int, int]:
        """Return the widths of the query norm and the key norm; 0 without norms."""
        heads = (self.num_heads, self.num_kv_heads) if self.qk_norm_over_heads else (1, 1)
        return heads[0] * self.head_size * self.qk_norm, heads[1] * self.head_size * self.qk_norm

    @property
    def rotary_size(self) -> int:
        """Return the number of leading elements of a head that are rotated."""
        return int(self.head_size * self.rotary_share)

    @property
    def score_scale(self) -> float:
        """Return the factor by which query-key products are multiplied."""
        return float(self.attention_multiplier * (self.query_scalar or self.head_size) ** -0.5)

    def has_window(self, layer: int) -> bool:
        return bool(self.sliding_window) and layer not in self.full_layers

    @property
    def exact_positions(self) -> int:
        """Return the sequence length up to which full attention is exact: the sliding window, or all positions."""
        return min(self.max_positions, self.sliding_window or self.max_positions)

    @property
    def stretched_positions(self) -> int:
        """Return the number of positions that the rotary scaling supports, at least `max_positions`."""
        # max_position_embeddings of Gemma 3 includes the scaling
        return self.max_positions if self.local_rotary_base else stretch(self.rope_scaling, self.max_positions)

    def positions(self, stretches: Collection[str], *, keeps_windows: bool) -> int:
        """Return the longest sequence, in tokens, that an engine supports.

        `stretches` are the kinds of RoPE scaling that the engine implements. With `keeps_windows` it implements sliding
        windows; otherwise the length is limited to the window.
        """
        is_stretched = self.rope_scaling is not None and self.rope_scaling.kind in stretches
        longest = self.stretched_positions if is_stretched else self.max_positions
        return longest if keeps_windows else min(longest, self.sliding_window or longest)

    def kv_bytes_per_token(self, item_bytes: int) -> int:
        """Return the KV-cache bytes of one token, keys and values of all layers together."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_size * item_bytes


class ConfigReader:
    """Typed access to a parsed config.json; every error names the file and the key."""

    def __init__(self, values: dict[str, Any], where: str, assumed: frozenset[str] = frozenset()) -> None:
        self.values = values
        self.where = where
        self.assumed = assumed  # keys whose values are defaults of a config class

    def with_defaults(self, defaults: Mapping[str, Any]) -> ConfigReader:
        """Return a reader in which absent keys have the defaults of a config class; null values stay null."""
        absent = {key: value for key, value in defaults.items() if key not in self.values}
        return ConfigReader(absent | self.values, self.where, self.assumed | absent.keys())

    def replacing(self, **values: Any) -> ConfigReader:
        return ConfigReader(self.values | values, self.where, self.assumed - values.keys())

    def refuse(self, message: str, hint: str | None = None) -> CheckpointError:
        """Return, without raising it, a CheckpointError about this file; a long message is truncated."""
        return CheckpointError(_cut(message), where=self.where, hint=hint)

    def refuse_value(self, message: str) -> CheckpointError:
        """Return, without raising it, a CheckpointError about an invalid value of this file."""
        name = self.where.partition(": ")[0].rpartition("/")[2]
        return self.refuse(message, f"correct it in {name}, or choose another checkpoint")

    def unsupported(self, message: str) -> UnsupportedModel:
        """Return, without raising it, an UnsupportedModel error for a model that cannot be converted."""
        return UnsupportedModel(_cut(message), where=self.where, hint=UNCONVERTED)

    def get(self, key: str, kind: type[T], default: T | None = None) -> T:
        """Return the value of `key`; raise CheckpointError if it is not a `kind` or is missing without a default.

        Null counts as missing. An integer is converted if `kind` is float.
        """
        value = self.values.get(key)
        if value is None:
            value = default
        if value is None:
            raise self.refuse_value(f"lacks {key!r}")
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            raise self.refuse_value(f"{key} is {quote_value(value)}, expected {kind.__name__}")
        return value

    def positive(self, key: str, default: int | None = None, most: int = 1 << 31) -> int:
        """Return `key` as an integer from 1 to `most`; raise CheckpointError for any other value."""
        value = self.get(key, int, default)
        if not 1 <= value <= most:
            raise self.refuse_value(f"{key} is {value}, expected a positive number of at most {most:,}")
        return value

    def section(self, key: str) -> ConfigReader | None:
        """Return a reader of the mapping at `key`, or None if it is absent, null or empty."""
        value = self.values.get(key)
        if not value:
            return None
        if not isinstance(value, dict):
            raise self.refuse_value(f"{key} is {quote_value(value)}, expected a mapping")
        return ConfigReader(value, f"{self.where}: {key}")


def _cut(message: str) -> str:
    return message if len(message) <= MAX_MESSAGE else f"{message[:MAX_MESSAGE]}..."
