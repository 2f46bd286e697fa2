# SPDX-License-Identifier: Apache-2.0
"""A pruned checkpoint has the logits of the target without the sublayers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests._support.tiny import convert, make_model, make_tokenizer, reference_model
from tests.checkpoints.quant.compressed import compress, compressed_tensors
from trtspec.checkpoints.source_model import load_model
from trtspec.checkpoints.trtllm import load_checkpoint
from trtspec.core.errors import CheckpointError
from trtspec.engine.model.decoder import Decoder, Sublayers
from trtspec.methods.layer_pruning import Skip, prune_checkpoint

pytestmark = pytest.mark.integration

SKIP = Skip(attention=[1, 2], mlp=[0, 2])
SHAPES: dict[str, dict[str, Any]] = {
    "llama": {"family": "llama"},
    "tied": {"family": "llama", "tie_word_embeddings": True},
    "biases": {"family": "llama", "attention_bias": True, "mlp_bias": True},
    "qwen3": {"family": "qwen3"},
    "mixtral": {"family": "mixtral"},
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_pruned_checkpoint_has_logits_of_the_target_with_skipped_sublayers(
    shape: dict[str, Any], tmp_path: Path
) -> None:
    source = make_tokenizer(make_model(tmp_path / "hf", num_hidden_layers=4, **shape))
    model = load_model(source, "auto")
    done: list[int] = []
    prune_checkpoint(model, SKIP, tmp_path / "pruned", done.append)
    decoder = Decoder(load_checkpoint(convert(source, tmp_path / "target")), 1, 16, torch.device("cpu"), torch.float32)
    tokens = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])
    with torch.inference_mode():
        skipped = Sublayers(frozenset(SKIP.attention), frozenset(SKIP.mlp))
        ours = decoder.forward_with_features(tokens, decoder.windows.chain([0], 8), (), skipped=skipped)[0]
        theirs = reference_model(tmp_path / "pruned")(tokens).logits[0]
    torch.testing.assert_close(ours, theirs, atol=2e-4, rtol=2e-4)
    config = json.loads((tmp_path / "pruned" / "config.json").read_text())
    assert config["num_hidden_layers"] == 3
    assert (tmp_path / "pruned" / "tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()
    tensors = load_file(tmp_path / "pruned" / "model.safetensors")
    assert sum(done) == sum(tensor.nbytes for tensor in tensors.values())
    assert not any(name.startswith("model.layers.3.") for name in tensors)


def test_sharded_source_is_pruned_with_only_skipped_projections_zeroed(tmp_path: Path) -> None:
    source = make_model(tmp_path / "hf", "llama", num_hidden_layers=4)
    reference_model(source, "bfloat16").save_pretrained(tmp_path / "sharded", max_shard_size="10KB")
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 3
    prune_checkpoint(load_model(tmp_path / "sharded", "auto"), SKIP, tmp_path / "pruned")
    before, after = (load_file(path / "model.safetensors") for path in (source, tmp_path / "pruned"))
    numbers = {0: 0, 1: 1, 3: 2}
    zeros = {"model.layers.1.self_attn.o_proj.weight", "model.layers.0.mlp.down_proj.weight"}
    renamed = {
        name.replace(f".layers.{old}.", f".layers.{new}."): tensor
        for old, new in numbers.items()
        for name, tensor in before.items()
        if f".layers.{old}." in name
    } | {name: tensor for name, tensor in before.items() if ".layers." not in name}
    assert renamed.keys() == after.keys()
    for name, tensor in after.items():
        assert torch.equal(tensor, torch.zeros_like(tensor) if name in zeros else renamed[name]), name


def test_quantized_source_and_unusable_output_path_are_rejected(tmp_path: Path) -> None:
    model = load_model(make_model(tmp_path / "hf", "llama"), "auto")
    quantized = load_model(compress(make_model(tmp_path / "fp8", "llama"), compressed_tensors()), "auto")
    with pytest.raises(CheckpointError, match="its weights are quantized; pruning requires un"):
        prune_checkpoint(quantized, Skip(mlp=[0]), tmp_path / "pruned")
    (tmp_path / "there").mkdir()
    with pytest.raises(CheckpointError, match="already exists"):
        prune_checkpoint(model, Skip(mlp=[0]), tmp_path / "there")
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="cannot be written: Not a directory"):
        prune_checkpoint(model, Skip(mlp=[0]), tmp_path / "file" / "pruned")
    assert {path.name for path in tmp_path.iterdir()} == {"hf", "fp8", "there", "file"}
