# SPDX-License-Identifier: Apache-2.0
"""A draft with fewer unused rows than its target is converted like one that was published with the same number."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests._support.tiny import SHAPE, convert, make_model
from trtspec.checkpoints.quant_scheme import Scheme
from trtspec.checkpoints.sharding import ParallelMapping

VOCAB, WIDER = SHAPE["vocab_size"], 75  # not a multiple of the ranks


def with_rows(source: Path, out: Path, rows: int) -> Path:
    """Copy a checkpoint with this number of embedding and head rows; the reference is padded by torch."""
    out.mkdir()
    tensors = load_file(source / "model.safetensors")
    for name in {"model.embed_tokens.weight", "lm_head.weight"} & tensors.keys():
        padding = torch.zeros(rows - VOCAB, tensors[name].shape[1], dtype=tensors[name].dtype)
        tensors[name] = torch.cat([tensors[name], padding])
    save_file(tensors, out / "model.safetensors", {"format": "pt"})
    config = json.loads((source / "config.json").read_text()) | {"vocab_size": rows}
    (out / "config.json").write_text(json.dumps(config))
    return out


def digests(root: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(root.iterdir())}


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("qwen2", {}),
        ("qwen2", {"mapping": ParallelMapping(tensor=2)}),
        ("llama", {"mapping": ParallelMapping(tensor=2, embedding=False)}),
        ("llama", {"mapping": ParallelMapping(pipeline=2)}),
        ("llama", {"scheme": Scheme("fp8_rowwise")}),
    ],
)
def test_padding_during_conversion_equals_converting_a_padded_source(
    tmp_path: Path, family: str, tied: bool, options: dict[str, Any]
) -> None:
    source = make_model(tmp_path / "source", family, tie_word_embeddings=tied)
    oracle = convert(with_rows(source, tmp_path / "padded", WIDER), tmp_path / "oracle", **options)
    ours = convert(source, tmp_path / "ours", vocab_size=WIDER, **options)
    assert digests(ours) == digests(oracle)
    assert json.loads((ours / "config.json").read_text())["vocab_size"] == WIDER
    assert digests(convert(source, tmp_path / "narrow", **options)) != digests(ours)
