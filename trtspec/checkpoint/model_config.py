# SPDX-License-Identifier: Apache-2.0
"""What a decoder is, in neutral words: the meeting point of Hugging Face configs and TensorRT-LLM configs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

from trtspec.errors import CheckpointError

T = TypeVar("T")


@dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are stretched; `kind` is Hugging Face's `rope_type`, the rest its parameters.

    `factor` divides low frequencies (all of them for "linear"). The last three are of "llama3" only: wavelengths below
    `original_max_position / high_freq_factor` stay, those above `original_max_position / low_freq_factor` are
    stretched, and the ones between are interpolated.
    """

    kind: str
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 1.0
    original_max_position: int = 0


@dataclass(frozen=True)
class ModelConfig:
    """A decoder-only transformer with rotary positions and gated MLP."""

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

    @property
    def num_parameters(self) -> int:
        """Return how many weights the model has; a tied embedding counts once."""
        heads = (self.num_heads + 2 * self.num_kv_heads) * self.head_size
        attention = heads * self.hidden_size + self.num_heads * self.head_size * self.hidden_size
        attention += (heads + self.hidden_size) * self.attn_bias
        mlp = 3 * self.hidden_size * self.intermediate_size
        mlp += (2 * self.intermediate_size + self.hidden_size) * self.mlp_bias
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tied_embeddings else 2)
        return embeddings + self.num_layers * (attention + mlp + 2 * self.hidden_size) + self.hidden_size

    def kv_bytes_per_token(self, item_bytes: int) -> int:
        """Return the bytes of keys and values that one token takes in all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_size * item_bytes


class ConfigReader:
    """Typed reads from a parsed config.json; every complaint names the file and the key."""

    def __init__(self, values: dict[str, Any], where: str) -> None:
        self.values = values
        self.where = where

    def refuse(self, message: str, hint: str | None = None) -> CheckpointError:
        """Return the error to raise for this file."""
        return CheckpointError(message, where=self.where, hint=hint)

    def get(self, key: str, kind: type[T], default: T | None = None) -> T:
        """Return `key` as `kind`; None counts as absent, an absent key without default is an error."""
        value = self.values.get(key)
        if value is None:
            value = default
        if value is None:
            raise self.refuse(f"lacks {key!r}")
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            raise self.refuse(f"{key} is {value!r}, expected {kind.__name__}")
        return value

    def positive(self, key: str, default: int | None = None) -> int:
        """Return `key` as an integer of at least 1 and at most 2^31."""
        value = self.get(key, int, default)
        if not 1 <= value <= 1 << 31:
            raise self.refuse(f"{key} is {value}, expected a positive number")
        return value

    def section(self, key: str) -> ConfigReader | None:
        """Return the mapping at `key`, or None where it is absent, null or empty."""
        value = self.values.get(key)
        if not value:
            return None
        if not isinstance(value, dict):
            raise self.refuse(f"{key} is {value!r}, expected a mapping")
        return ConfigReader(value, f"{self.where}: {key}")
