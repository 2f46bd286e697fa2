# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of many ranks give the same bits as a single rank; errors name the tensor and its file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests._support.tiny import convert, make_model
from trtspec.checkpoints.quant_scheme import Scheme
from trtspec.checkpoints.sharding import ParallelMapping
from trtspec.checkpoints.trtllm import load_checkpoint
from trtspec.core.errors import CheckpointError
from trtspec.engine.model.decoder import Decoder

pytestmark = pytest.mark.integration

# a vocabulary that no number of ranks divides, layers that no number of stages divides
SHAPE: dict[str, Any] = {
    "vocab_size": 61, "hidden_size": 64, "num_hidden_layers": 5, "num_attention_heads": 8, "num_key_value_heads": 2,
}  # fmt: skip
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma2": ("gemma2", {}),
    "gemma3, one key head": ("gemma3", {"num_key_value_heads": 1}),
    "phi3": ("phi3", {}),
    "llama with biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, tied, a head each": ("llama", {"tie_word_embeddings": True, "num_key_value_heads": 8}),
    "mixtral": ("mixtral", {}),
    "qwen2, one key head": ("qwen2", {"num_key_value_heads": 1}),
    "qwen3": ("qwen3", {}),
}
MAPPINGS = [(2, 1), (4, 1), (8, 1), (1, 2), (1, 4), (2, 3), (8, 4), (4, 2)]


def logits(root: Path) -> Tensor:
    tokens = torch.arange(0, 60, 3).view(2, 10)
    decoder = Decoder(load_checkpoint(root), 2, 16, torch.device("cpu"), torch.float32)
    with torch.inference_mode():
        return decoder.forward(tokens, decoder.windows.chain([0, 0], 10))


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("sources")
    return {name: make_model(root / name, family, **SHAPE | shape) for name, (family, shape) in MODELS.items()}


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_independent_of_the_number_of_ranks(name: str, sources: dict[str, Path], tmp_path: Path) -> None:
    expected = logits(convert(sources[name], tmp_path / "whole"))
    for tensor, pipeline in MAPPINGS:
        for embedding in (True, False):
            mapping = ParallelMapping(tensor, pipeline, embedding)
            root = convert(sources[name], tmp_path / f"{tensor}-{pipeline}-{embedding}", mapping=mapping)
            assert torch.equal(logits(root), expected), mapping


@pytest.mark.parametrize("name", ["llama with biases", "phi3", "qwen2, one key head", "qwen3"])
def test_logits_with_rowwise_scales_are_independent_of_the_number_of_ranks(
    name: str, sources: dict[str, Path], tmp_path: Path
) -> None:
    scheme = Scheme("fp8_rowwise")
    expected = logits(convert(sources[name], tmp_path / "whole", scheme=scheme))
    for tensor, pipeline in ((2, 1), (8, 2)):
        mapping = ParallelMapping(tensor, pipeline)
        root = convert(sources[name], tmp_path / f"{tensor}-{pipeline}", scheme=scheme, mapping=mapping)
        assert torch.equal(logits(root), expected), mapping


def edit(file: Path, change: Callable[[dict[str, Tensor]], None]) -> None:
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})


QKV = "transformer.layers.1.attention.qkv.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop(QKV), f"the tensor {QKV!r} is missing"),
        (
            lambda tensors: tensors.update({QKV: tensors[QKV][:-1].clone()}),
            f"tensor {QKV!r} is [47, 64], config.json requires [48, 64]",
        ),
        (
            lambda tensors: tensors.update({QKV: tensors[QKV].to(torch.int8)}),
            f"tensor {QKV!r} is I8; the torch engine supports BF16, F16, F32, F8_E4M3, I64",
        ),
        (
            lambda tensors: tensors.pop("transformer.layers.2.input_layernorm.weight"),
            "the tensor 'transformer.layers.2.input_layernorm.weight' is missing",
        ),
    ],
)
def test_invalid_tensor_is_reported_with_its_name_and_file(
    change: Callable[[dict[str, Tensor]], None], message: str, sources: dict[str, Path], tmp_path: Path
) -> None:
    """The second of the first stage's two ranks is broken."""
    root = convert(sources["llama with biases"], tmp_path / "c", mapping=ParallelMapping(2, 2))
    edit(root / "rank1.safetensors", change)
    with pytest.raises(CheckpointError) as refused:
        logits(root)
    assert str(refused.value).partition("\nhint: ")[0] == f"{root / 'rank1.safetensors'}: {message}"


def test_config_that_contradicts_a_tensor_shape_is_rejected(sources: dict[str, Path], tmp_path: Path) -> None:
    root = convert(sources["qwen3"], tmp_path / "c")
    config = json.loads((root / "config.json").read_text())
    (root / "config.json").write_text(json.dumps(config | {"intermediate_size": 56}))
    with pytest.raises(CheckpointError) as refused:
        logits(root)
    name = "transformer.layers.0.mlp.fc.weight"
    complaint = f"tensor {name!r} is [48, 64], config.json requires [56, 64]"
    assert str(refused.value).partition("\nhint: ")[0] == f"{root / 'rank0.safetensors'}: {complaint}"
