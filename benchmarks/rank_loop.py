# SPDX-License-Identifier: Apache-2.0
"""The peer of benchmarks/convert.py: a loop over ranks with torch and safetensors, as in TensorRT-LLM's examples.

One rank is in memory at a time, and all sources are read for each: `python benchmarks/rank_loop.py SOURCE OUT WEIGHTS
RANKS`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

E4M3_MAX = 448.0

Cut = Callable[[torch.Tensor], torch.Tensor]


@dataclass
class Rank:
    """One rank's tensors during conversion; `weights`: none, fp8 or fp8_rowwise."""

    load: Callable[[str], torch.Tensor]
    weights: str
    number: int
    ranks: int
    done: dict[str, torch.Tensor] = field(default_factory=dict)

    def by_rows(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return this rank's rows."""
        return tensor.chunk(self.ranks, 0)[self.number]

    def by_columns(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return this rank's columns."""
        return tensor.chunk(self.ranks, 1)[self.number]

    def linear(self, target: str, parts: list[torch.Tensor], cut: Cut, fused: list[torch.Tensor]) -> None:
        """Store vertically concatenated weights; `fused` are all tensors that share their scale."""
        if self.weights == "none":
            self.done[f"{target}.weight"] = torch.cat([cut(part) for part in parts]).contiguous()
            return
        if self.weights == "fp8":
            scale = torch.stack([part.abs().amax() for part in fused]).amax().float() / E4M3_MAX
            whole = torch.cat([cut(part) for part in parts]).float() / scale
            self.done[f"{target}.weights_scaling_factor"] = scale.reshape(1)
        else:
            scales = [part.abs().amax(1, keepdim=True).float() / E4M3_MAX for part in parts]
            cuts = [self.by_rows(scale) if cut == self.by_rows else scale for scale in scales]
            whole = torch.cat([cut(part).float() / scale for part, scale in zip(parts, cuts, strict=True)])
            self.done[f"{target}.per_channel_scale"] = torch.cat(cuts).contiguous()
        self.done[f"{target}.weight"] = whole.to(torch.float8_e4m3fn).contiguous()

    def layer(self, number: int) -> None:
        """Convert a layer."""
        here, there = f"model.layers.{number}", f"transformer.layers.{number}"
        qkv = [self.load(f"{here}.self_attn.{name}_proj.weight") for name in "qkv"]
        self.linear(f"{there}.attention.qkv", qkv, self.by_rows, qkv)
        fused = [self.load(f"{here}.mlp.{name}_proj.weight") for name in ("gate", "up")]
        for target, tensor in zip(("fc", "gate"), fused, strict=True):
            self.linear(f"{there}.mlp.{target}", [tensor], self.by_rows, fused)
        for target, name in (("attention.dense", "self_attn.o_proj"), ("mlp.proj", "mlp.down_proj")):
            tensor = self.load(f"{here}.{name}.weight")
            self.linear(f"{there}.{target}", [tensor], self.by_columns, [tensor])
        for target, name in (("input_layernorm", "input_layernorm"), ("post_layernorm", "post_attention_layernorm")):
            self.done[f"{there}.{target}.weight"] = self.load(f"{here}.{name}.weight")

    def ends(self) -> None:
        """Convert the tensors before and after the layers."""
        for target, name in (("transformer.vocab_embedding", "model.embed_tokens"), ("lm_head", "lm_head")):
            self.done[f"{target}.weight"] = self.by_rows(self.load(f"{name}.weight")).contiguous()
        self.done["transformer.ln_f.weight"] = self.load("model.norm.weight")


def convert_by_rank(source: Path, out: Path, weights: str = "fp8", ranks: int = 4) -> None:
    """Convert a Llama checkpoint; every byte is on disk at the end."""
    layers = json.loads((source / "config.json").read_text())["num_hidden_layers"]
    out.mkdir(exist_ok=True)
    for number, load in enumerate(_loaders(source, ranks)):
        rank = Rank(load, weights, number, ranks)
        rank.ends()
        for layer in range(layers):
            rank.layer(layer)
        path = out / f"rank{number}.safetensors"
        save_file(rank.done, path)
        with path.open("rb") as file:
            os.fsync(file.fileno())


def _loaders(source: Path, ranks: int) -> Iterator[Callable[[str], torch.Tensor]]:
    """Yield a tensor loader for each rank, with all files reopened."""
    index = json.loads((source / "model.safetensors.index.json").read_text())["weight_map"]
    for _ in range(ranks):
        files = {name: safe_open(source / name, "pt") for name in set(index.values())}
        yield lambda name, files=files: files[index[name]].get_tensor(name)


if __name__ == "__main__":
    convert_by_rank(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
