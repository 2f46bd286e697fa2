# SPDX-License-Identifier: Apache-2.0
"""Models of real shapes with random weights; the file is sparse, and weights are drawn on the device."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from trtspec.checkpoints.model_config import ModelConfig
from trtspec.checkpoints.rules import layer_tensor
from trtspec.checkpoints.safetensors import lay_out
from trtspec.checkpoints.sharding import ParallelMapping
from trtspec.checkpoints.trtllm import EMBEDDING, FINAL_NORM, LM_HEAD, TrtllmQuantization, render_config
from trtspec.engine.model.decoder import Decoder
from trtspec.engine.model.layers import GatedMlp, Linear, PackedMatrix

SPREAD = 0.02  # as in Llama's initialization
NORMS = ("input_layernorm.weight", "post_layernorm.weight")


def llama(
    hidden: int, layers: int, heads: int, kv_heads: int, head_size: int, inner: int, vocab: int, tied: bool = False
) -> ModelConfig:
    """Return a Llama in bfloat16."""
    return ModelConfig(
        architecture="LlamaForCausalLM",
        dtype="bfloat16",
        vocab_size=vocab,
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_size=head_size,
        intermediate_size=inner,
        hidden_act="silu",
        norm_epsilon=1e-5,
        max_positions=8192,
        rotary_base=500000.0,
        rope_scaling=None,
        attn_bias=False,
        mlp_bias=False,
        tied_embeddings=tied,
    )


# Llama 3.1 8B and Llama 3.2 1B, and a small pair for machines without a GPU
PAIRS = {
    "8b": (llama(4096, 32, 32, 8, 128, 14336, 128256), llama(2048, 16, 32, 8, 64, 8192, 128256, tied=True)),
    "tiny": (llama(64, 3, 4, 2, 16, 96, 512), llama(32, 1, 4, 2, 8, 48, 512, tied=True)),
}


def write_hollow(config: ModelConfig, root: Path) -> Path:
    """Write a converted checkpoint of sparse, zero weights; return `root`."""
    root.mkdir(parents=True, exist_ok=True)
    (root / "config.json").write_text(json.dumps(render_config(config, ParallelMapping(), TrtllmQuantization())))
    layout = lay_out((name, "BF16", shape) for name, shape in _tensors(config))
    with (root / "rank0.safetensors").open("wb") as file:
        file.write(layout.header)
        file.truncate(layout.nbytes)
    return root


def randomize(model: Decoder, seed: int) -> None:
    """Randomize a decoder's weights in place; norms are ones."""
    drawn = torch.Generator(model.device).manual_seed(seed)
    for weight in _weights(model):
        if weight.dim() > 1:
            weight.normal_(0.0, SPREAD, generator=drawn)
        else:
            weight.fill_(1.0)


def read_bytes(model: Decoder) -> int:
    """Return the bytes of weights that a step reads, without embedding rows that are not looked up."""
    weights = {weight.data_ptr(): weight.numel() * weight.element_size() for weight in _weights(model)}
    tied = _plain(model.lm_head).data_ptr() == model.embedding.data_ptr()
    return sum(weights.values()) - (0 if tied else weights[model.embedding.data_ptr()])


def _weights(model: Decoder) -> Iterator[Tensor]:
    yield model.embedding
    yield model.final_norm
    if _plain(model.lm_head).data_ptr() != model.embedding.data_ptr():
        yield _plain(model.lm_head)
    for layer in model.layers:
        if not isinstance(layer.mlp, GatedMlp):
            raise TypeError("models with experts are not supported")
        yield from (layer.input_norm, layer.post_norm, _plain(layer.qkv), _plain(layer.dense))
        yield from (_plain(layer.mlp.gate_up), _plain(layer.mlp.down))


def _plain(linear: object) -> Tensor:
    """Return the unpacked matrix of a linear module."""
    if not isinstance(linear, Linear) or isinstance(linear.matrix, PackedMatrix):
        raise TypeError("the matrix is packed; load the model without oneDNN")
    return linear.matrix.stored


def _tensors(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield names and shapes of a converted checkpoint's tensors."""
    hidden, inner = config.hidden_size, config.intermediate_size
    heads = config.num_heads * config.head_size
    of_layer = {
        "attention.qkv.weight": (heads + 2 * config.num_kv_heads * config.head_size, hidden),
        "attention.dense.weight": (hidden, heads),
        "mlp.fc.weight": (inner, hidden),
        "mlp.gate.weight": (inner, hidden),
        "mlp.proj.weight": (hidden, inner),
        **dict.fromkeys(NORMS, (hidden,)),
    }
    yield EMBEDDING, (config.vocab_size, hidden)
    for number in range(config.num_layers):
        yield from ((layer_tensor(number, name), shape) for name, shape in of_layer.items())
    yield FINAL_NORM, (hidden,)
    if not config.tied_embeddings:
        yield LM_HEAD, (config.vocab_size, hidden)
