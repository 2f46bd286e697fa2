# SPDX-License-Identifier: Apache-2.0
"""What a decoder is, in neutral words: the meeting point of Hugging Face configs and TensorRT-LLM configs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from trtspec.core.diagnostics import written
from trtspec.core.errors import CheckpointError, UnsupportedModel

MAX_MESSAGE = 2000
UNCONVERTED = "choose an engine.backend that runs the checkpoint as it is"

T = TypeVar("T")


@dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are stretched; `kind` is Hugging Face's `rope_type`, the rest its parameters.

    `factor` divides low frequencies (all of them for "linear"; none for "dynamic" up to the model's own positions).
    "llama3" reads the two `freq_factor`s: wavelengths below `original_max_position / high_freq_factor` stay, those
    above `original_max_position / low_freq_factor` are stretched, the ones between are interpolated. "yarn" reads the
    rest: frequencies that turn more than `beta_fast` times over `original_max_position` stay, those that turn less than
    `beta_slow` times are stretched, and sines and cosines are multiplied by `attention_factor`. "longrope" reads that
    too, and divides each frequency by its own of the `short_factors`, or of the `long_factors` for texts beyond
    `original_max_position`.
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
    """Return how many positions a scaling is made for, at least `max_positions`.

    Linear and dynamic scaling stretch the model's own positions, YaRN the original ones. The others are made for those
    of config.json.
    """
    if scaling is None or scaling.kind not in ("linear", "dynamic", "yarn"):
        return max_positions
    original = scaling.original_max_position if scaling.kind == "yarn" else max_positions
    return max(max_positions, int(original * scaling.factor))


@dataclass(frozen=True)
class ModelConfig:
    """A decoder-only transformer with rotary positions and gated MLP, dense or a mixture of experts.

    `attn_bias` is that of queries, keys and values, `dense_bias` that of the attention's output. `num_experts` is 0 for
    a dense MLP; `intermediate_size` is one expert's. `hidden_act` "swiglu" is "silu" where `mlp.fc` holds both
    branches, as TensorRT-LLM stores them. `sliding_window` is how far back attention reaches, 0 for all the way;
    in the `full_layers` it reaches all the way nevertheless. Layers with a window rotate by `local_rotary_base`,
    unscaled, where it is not 0. `rotary_share` is the part of each head that is rotated.

    With `inner_norms` what attention and MLP give is normed before it is added; `scaled_embedding` multiplies
    embeddings by the root of the hidden size. Scores are divided by the root of `query_scalar`, 0 for the head size.
    Scores and logits x become cap * tanh(x / cap) where their cap is not 0. `extra` holds keys that the family's own
    TensorRT-LLM config class reads beside the common ones.
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
    inner_norms: bool = False
    scaled_embedding: bool = False
    query_scalar: float = 0.0
    attention_cap: float = 0.0
    logit_cap: float = 0.0
    extra: tuple[tuple[str, str | int | float], ...] = ()

    @property
    def num_parameters(self) -> int:
        """Return how many weights the model has; a tied embedding counts once."""
        heads = (self.num_heads + 2 * self.num_kv_heads) * self.head_size
        attention = heads * self.hidden_size + self.num_heads * self.head_size * self.hidden_size
        attention += heads * self.attn_bias + self.hidden_size * self.dense_bias + 2 * self.head_size * self.qk_norm
        mlp = 3 * self.hidden_size * self.intermediate_size
        mlp += (2 * self.intermediate_size + self.hidden_size) * self.mlp_bias
        mlp = mlp * max(1, self.num_experts) + self.num_experts * self.hidden_size
        norms = (4 if self.inner_norms else 2) * self.hidden_size
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tied_embeddings else 2)
        return embeddings + self.num_layers * (attention + mlp + norms) + self.hidden_size

    @property
    def rotary_size(self) -> int:
        """Return how many numbers of a head are rotated, the first ones."""
        return int(self.head_size * self.rotary_share)

    @property
    def score_scale(self) -> float:
        """Return what the products of queries and keys are multiplied by."""
        return float((self.query_scalar or self.head_size) ** -0.5)

    def has_window(self, layer: int) -> bool:
        """Return whether a layer's attention reaches back no further than the sliding window."""
        return bool(self.sliding_window) and layer not in self.full_layers

    @property
    def exact_positions(self) -> int:
        """Return up to which length full attention says what the model says: the window, where it has one."""
        return min(self.max_positions, self.sliding_window or self.max_positions)

    @property
    def stretched_positions(self) -> int:
        """Return how many positions the rotary scaling is made for, where that is more than `max_positions`."""
        # Gemma 3's own number is stretched already
        return self.max_positions if self.local_rotary_base else stretch(self.rope_scaling, self.max_positions)

    def positions(self, stretches: Collection[str], *, keeps_windows: bool) -> int:
        """Return how long texts may be for an engine that stretches positions with these kinds of scaling."""
        is_stretched = self.rope_scaling is not None and self.rope_scaling.kind in stretches
        longest = self.stretched_positions if is_stretched else self.max_positions
        return longest if keeps_windows else min(longest, self.sliding_window or longest)

    def kv_bytes_per_token(self, item_bytes: int) -> int:
        """Return the bytes of keys and values that one token takes in all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_size * item_bytes


class ConfigReader:
    """Typed reads from a parsed config.json; every complaint names the file and the key."""

    def __init__(self, values: dict[str, Any], where: str, assumed: frozenset[str] = frozenset()) -> None:
        self.values = values
        self.where = where
        self.assumed = assumed  # the keys whose values are defaults of a config class

    def with_defaults(self, defaults: Mapping[str, Any]) -> ConfigReader:
        """Return a reader that has the defaults of a config class for absent keys; a null stays one."""
        absent = {key: value for key, value in defaults.items() if key not in self.values}
        return ConfigReader(absent | self.values, self.where, self.assumed | absent.keys())

    def replacing(self, **values: Any) -> ConfigReader:
        """Return a reader with other values for some keys."""
        return ConfigReader(self.values | values, self.where, self.assumed - values.keys())

    def refuse(self, message: str, hint: str | None = None) -> CheckpointError:
        """Return the error to raise for this file, whose values in `message` may be long."""
        return CheckpointError(_cut(message), where=self.where, hint=hint)

    def refuse_value(self, message: str) -> CheckpointError:
        """Return the error to raise for a value that this file has to have otherwise."""
        name = self.where.partition(": ")[0].rpartition("/")[2]
        return self.refuse(message, f"correct it in {name}, or name a checkpoint that has it right")

    def unsupported(self, message: str) -> UnsupportedModel:
        """Return the error to raise for a model that the conversion does not support."""
        return UnsupportedModel(_cut(message), where=self.where, hint=UNCONVERTED)

    def get(self, key: str, kind: type[T], default: T | None = None) -> T:
        """Return `key` as `kind`; None counts as absent, an absent key without default is an error."""
        value = self.values.get(key)
        if value is None:
            value = default
        if value is None:
            raise self.refuse_value(f"lacks {key!r}")
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            raise self.refuse_value(f"{key} is {written(value)}, expected {kind.__name__}")
        return value

    def positive(self, key: str, default: int | None = None, most: int = 1 << 31) -> int:
        """Return `key` as an integer of at least 1 and at most `most`."""
        value = self.get(key, int, default)
        if not 1 <= value <= most:
            raise self.refuse_value(f"{key} is {value}, expected a positive number of at most {most:,}")
        return value

    def section(self, key: str) -> ConfigReader | None:
        """Return the mapping at `key`, or None where it is absent, null or empty."""
        value = self.values.get(key)
        if not value:
            return None
        if not isinstance(value, dict):
            raise self.refuse_value(f"{key} is {written(value)}, expected a mapping")
        return ConfigReader(value, f"{self.where}: {key}")


def _cut(message: str) -> str:
    return message if len(message) <= MAX_MESSAGE else f"{message[:MAX_MESSAGE]}..."
