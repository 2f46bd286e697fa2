# SPDX-License-Identifier: Apache-2.0
"""FP8 sources in llm-compressor's format (compressed-tensors), generated from the public specification."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests._support.tiny import convert
from trtspec.core.errors import CheckpointError

E4M3 = torch.float8_e4m3fn
LINEAR = re.compile(r".*(_proj|\.w[123])\.weight")
Tensors = dict[str, torch.Tensor]


def compressed_tensors(by: str = "tensor", kv_cache: bool = False, **differences: Any) -> dict[str, Any]:
    """Return llm-compressor's `quantization_config`; `differences` change its single group."""
    common = {"num_bits": 8, "type": "float", "symmetric": True}
    dynamic = by == "channel"
    group = {
        "weights": {**common, "strategy": by, "dynamic": False},
        "input_activations": {**common, "strategy": "token" if dynamic else "tensor", "dynamic": dynamic},
        "output_activations": None,
        "targets": ["Linear"],
    }
    for part, changes in differences.items():
        group[part] = {**group[part], **changes} if changes and group[part] else changes
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "kv_cache_scheme": {**common, "strategy": "tensor", "dynamic": False} if kv_cache else None,
        "ignore": ["re:.*lm_head"],
    }


def compress(root: Path, document: dict[str, Any], linear: re.Pattern[str] = LINEAR) -> Path:
    """Quantize a source in place according to `document`: weights by tensor or by row, with arbitrary input scales."""
    tensors = load_file(root / "model.safetensors")
    by_row = document["config_groups"]["group_0"]["weights"]["strategy"] == "channel"
    for number, name in enumerate(sorted(name for name in tensors if linear.fullmatch(name))):
        weight = tensors[name].float()
        largest = weight.abs().amax(dim=1, keepdim=True) if by_row else weight.abs().max().reshape(1)
        scale = (largest / 448).bfloat16()
        tensors[name] = (weight / scale.float()).clamp(-448, 448).to(E4M3)
        tensors[f"{name}_scale"] = scale
        if not by_row:
            tensors[f"{name.removesuffix('weight')}input_scale"] = torch.tensor([0.01 * (1 + number * 7 % 5)])
    if document["kv_cache_scheme"]:
        for layer in range(2):
            for kind, scale in (("k", 0.25 + layer), ("v", 0.5 + 3 * layer)):
                tensors[f"model.layers.{layer}.self_attn.{kind}_scale"] = torch.tensor([scale])
    save_file(tensors, root / "model.safetensors")
    return declare(root, document)


def declare(root: Path, document: dict[str, Any]) -> Path:
    config = json.loads((root / "config.json").read_text())
    (root / "config.json").write_text(json.dumps(config | {"quantization_config": document}))
    return root


def edit(root: Path, change: Callable[[Tensors], object]) -> None:
    tensors = load_file(root / "model.safetensors")
    change(tensors)
    save_file(tensors, root / "model.safetensors")


def refused(source: Path, *texts: str, **options: Any) -> None:
    with pytest.raises(CheckpointError) as caught:
        convert(source, source.parent / "refused", **options)
    for text in texts:
        assert text in str(caught.value)
