# SPDX-License-Identifier: Apache-2.0
"""Rotary position embeddings: the frequency of each pair of a head, plain or scaled.

Computed in float32 and in the order of transformers' operations (src/transformers/modeling_rope_utils.py); the tests
compare bits, because the rounding of a frequency matters at large positions. TensorRT-LLM computes the same.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from trtspec.checkpoints.model_config import ModelConfig, RopeScaling


def rotations(config: ModelConfig, max_len: int, length: int = 0) -> Tensor:
    """Return attention_factor * e^(i * position * frequency) as complex64 [max_len, 1, rotary_size / 2].

    `length` is the length of the longest text.
    """
    angles = torch.outer(torch.arange(max_len, dtype=torch.float32), frequencies(config, length))
    return torch.polar(torch.full_like(angles, attention_factor(config)), angles).unsqueeze(1)


def sliding_window_config(config: ModelConfig) -> ModelConfig:
    """Return the config with the rotary settings of layers with a sliding window."""
    if not config.local_rotary_base:
        return config
    return replace(config, rotary_base=config.local_rotary_base, rope_scaling=None)


def attention_factor(config: ModelConfig) -> float:
    """Return the factor of sines and cosines."""
    return config.rope_scaling.attention_factor if config.rope_scaling else 1.0


def frequencies(config: ModelConfig, length: int = 0) -> Tensor:
    """Return the radians per position of each pair, float32 [rotary_size / 2], for texts of at most `length` tokens."""
    exponents = torch.arange(0, config.rotary_size, 2, dtype=torch.float32) / config.rotary_size
    inverse = config.rotary_base**exponents
    scaling = config.rope_scaling
    # "dynamic" scaling applies only beyond the model's original positions, which the engine does not support
    if scaling is None or scaling.kind == "dynamic":
        return 1.0 / inverse
    if scaling.kind == "linear":
        return 1.0 / inverse / scaling.factor
    if scaling.kind == "llama3":
        return _llama3(1.0 / inverse, scaling)
    if scaling.kind == "longrope":
        is_long = length > scaling.original_max_position
        return 1.0 / (torch.tensor(scaling.long_factors if is_long else scaling.short_factors) * inverse)
    return _yarn(inverse, scaling, config)


def _llama3(plain: Tensor, scaling: RopeScaling) -> Tensor:
    """Scale low frequencies as in meta-llama/llama-models, models/llama3/model.py."""
    wavelengths = 2 * math.pi / plain
    longest = scaling.original_max_position / scaling.low_freq_factor
    shortest = scaling.original_max_position / scaling.high_freq_factor
    turns = scaling.original_max_position / wavelengths
    kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    between = (1 - kept) * plain / scaling.factor + kept * plain
    stretched = torch.where(wavelengths > longest, plain / scaling.factor, plain)
    return torch.where((wavelengths < shortest) | (wavelengths > longest), stretched, between)


def _yarn(inverse: Tensor, scaling: RopeScaling, config: ModelConfig) -> Tensor:
    """Blend plain and scaled frequencies by a ramp over the pairs (YaRN, arXiv 2309.00071, eq. 23)."""

    def pair_with_turns(turns: float) -> float:
        original = math.log(scaling.original_max_position / (turns * 2 * math.pi))
        return config.rotary_size * original / (2 * math.log(config.rotary_base))

    first, last = pair_with_turns(scaling.beta_fast), pair_with_turns(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, config.rotary_size - 1)
    ramp = (torch.arange(len(inverse), dtype=torch.float32) - first) / (last - first or 0.001)
    kept = 1 - ramp.clamp(0, 1)
    return 1.0 / (scaling.factor * inverse) * (1 - kept) + 1.0 / inverse * kept
