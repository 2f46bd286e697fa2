# SPDX-License-Identifier: Apache-2.0
"""Tiny converted checkpoints, and functions to modify them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file, save_file

from tests._support.tiny import convert
from trtspec.checkpoints.conversion import Activations
from trtspec.checkpoints.quant_scheme import Scheme

LINEAR = ("attention.qkv", "attention.dense", "mlp.fc", "mlp.gate", "mlp.proj")


def activations_of(layers: int) -> Activations:
    """Return plausible calibration results."""
    modules = [f"transformer.layers.{layer}.{name}" for layer in range(layers) for name in LINEAR]
    caches = {f"transformer.layers.{layer}.attention": 3.0 for layer in range(layers)}
    return Activations(dict.fromkeys(modules, 2.0), caches, caches)


def convert_fp8(source: Path, out: Path, layers: int = 2, **how: Any) -> Path:
    """Convert to FP8 weights and KV cache."""
    return convert(source, out, scheme=Scheme("fp8", "fp8"), activations=activations_of(layers), **how)


def change_config(checkpoint: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """Change config.json."""
    path = checkpoint / "config.json"
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))
    return checkpoint


def change_tensors(checkpoint: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """Change the first rank's tensors, which must be float16."""
    path = checkpoint / "rank0.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)
    return checkpoint
