# SPDX-License-Identifier: Apache-2.0
"""Create checkpoints for the conversion benchmark: Llama layers with random bfloat16 weights, one shard per layer."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trtspec.checkpoints.safetensors import lay_out

ROOT = Path(__file__).resolve().parents[1]
NORMS = ("input_layernorm", "post_attention_layernorm")
BLOCK_BYTES = 64 << 20
LEAST_LLAMA_8B_GIGABYTES = 3.0


@dataclass(frozen=True)
class Shape:
    """The dimensions of a Llama: hidden state, MLP, all keys, vocabulary and number of attention heads."""

    hidden: int
    intermediate: int
    keys: int
    vocabulary: int
    heads: int

    @property
    def linears(self) -> dict[str, tuple[int, int]]:
        """Return rows and columns of a layer's weights."""
        return {
            "self_attn.q_proj": (self.hidden, self.hidden),
            "self_attn.k_proj": (self.keys, self.hidden),
            "self_attn.v_proj": (self.keys, self.hidden),
            "self_attn.o_proj": (self.hidden, self.hidden),
            "mlp.gate_proj": (self.intermediate, self.hidden),
            "mlp.up_proj": (self.intermediate, self.hidden),
            "mlp.down_proj": (self.hidden, self.intermediate),
        }

    def config(self, layers: int) -> dict[str, Any]:
        """Return the content of config.json."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.keys * self.heads // self.hidden,
            "num_hidden_layers": layers,
            "vocab_size": self.vocabulary,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 8192,
            "rope_theta": 500000.0,
            "dtype": "bfloat16",
            "hidden_act": "silu",
            "model_type": "llama",
        }

    def layers_of(self, gigabytes: float) -> int:
        """Return the number of layers of a checkpoint of about that size."""
        layer_bytes = 2 * sum(rows * columns for rows, columns in self.linears.values())
        return max(1, round((gigabytes * 1e9 - 4 * self.vocabulary * self.hidden) / layer_bytes))

    def shards(self, layers: int) -> Iterator[list[tuple[str, tuple[int, ...]]]]:
        """Yield the tensors of each file."""
        words = (self.vocabulary, self.hidden)
        yield [("model.embed_tokens.weight", words), ("lm_head.weight", words), ("model.norm.weight", (self.hidden,))]
        for layer in range(layers):
            weights = [(f"model.layers.{layer}.{name}.weight", shape) for name, shape in self.linears.items()]
            yield [*weights, *((f"model.layers.{layer}.{name}.weight", (self.hidden,)) for name in NORMS)]


LLAMA_8B = Shape(4096, 14336, 1024, 128256, 32)
TINY_LLAMA = Shape(2048, 5632, 256, 32000, 32)
LLAMA_405B = Shape(16384, 53248, 1024, 128256, 128)


def shape_of(gigabytes: float) -> Shape:
    """Return a shape whose checkpoints can have about that size: Llama 3 8B's embeddings alone are 2.1 GB."""
    return LLAMA_8B if gigabytes >= LEAST_LLAMA_8B_GIGABYTES else TINY_LLAMA


def make_source(root: Path, gigabytes: float, shape: Shape = LLAMA_8B, *, sparse: bool = False) -> int:
    """Write a checkpoint of about that size with a tokenizer; return the bytes of its tensors."""
    layers = shape.layers_of(gigabytes)
    root.mkdir(parents=True)
    (root / "config.json").write_text(json.dumps(shape.config(layers)))
    copy_tokenizer(root)
    block, total, weight_map = b"" if sparse else noise(), 0, {}
    for number, tensors in enumerate(shape.shards(layers)):
        name = f"model-{number:05}.safetensors"
        layout = lay_out((tensor, "BF16", size) for tensor, size in tensors)
        with (root / name).open("wb") as file:
            file.write(layout.header)
            if sparse:
                file.truncate(layout.nbytes)
            while not sparse and file.tell() < layout.nbytes:
                file.write(block[: min(len(block), layout.nbytes - file.tell())])
        total += layout.nbytes - len(layout.header)
        weight_map |= {tensor: name for tensor, _ in tensors}
    (root / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    os.sync()
    return total


def copy_tokenizer(root: Path) -> None:
    """Copy the quickstart's tokenizer into a checkpoint."""
    for path in (ROOT / "recipes" / "models" / "quickstart-target").glob("tokenizer*"):
        shutil.copy(path, root)


def noise() -> memoryview:
    """Return a block of random bfloat16 weights, which files repeat."""
    values = np.random.default_rng(0).standard_normal(BLOCK_BYTES // 2, dtype=np.float32) * np.float32(0.02)
    return memoryview((values.view(np.uint32) >> 16).astype(np.uint16).data).cast("B")


def forget(root: Path) -> None:
    """Drop a directory's files from the page cache."""
    for path in root.rglob("*.safetensors"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def remember(root: Path) -> None:
    """Read a directory's files into the page cache."""
    buffer = bytearray(BLOCK_BYTES)
    for path in root.glob("*.safetensors"):
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
