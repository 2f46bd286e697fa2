# SPDX-License-Identifier: Apache-2.0
"""Sources of Medusa heads, random and fitted to a model's texts, and a reference implementation of their formula."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from tests._support.tiny import SHAPE, convert
from trtspec.methods.draft_head import load_head

Tensors = dict[str, Tensor]
HIDDEN, VOCAB = SHAPE["hidden_size"], SHAPE["vocab_size"]


def random_heads(
    num_heads: int = 4, num_layers: int = 1, hidden: int = HIDDEN, vocab: int = VOCAB, seed: int = 5
) -> Tensors:
    """Return the tensors of random heads, with the reference's names."""
    draw = torch.Generator().manual_seed(seed)
    tensors = {}
    for head in range(num_heads):
        for layer in range(num_layers):
            tensors[f"{head}.{layer}.linear.weight"] = torch.randn(hidden, hidden, generator=draw) * 0.2
            tensors[f"{head}.{layer}.linear.bias"] = torch.randn(hidden, generator=draw)
        tensors[f"{head}.{num_layers}.weight"] = torch.randn(vocab, hidden, generator=draw)
    return {name: tensor.bfloat16() for name, tensor in tensors.items()}


def save_heads(root: Path, tensors: Tensors, prefix: str = "", **config: Any) -> Path:
    """Save heads in the reference's format."""
    root.mkdir(parents=True)
    (root / "config.json").write_text(json.dumps({"medusa_num_heads": 2, "base_model_name_or_path": "x"} | config))
    save_file({f"{prefix}{name}": tensor for name, tensor in tensors.items()}, root / "medusa_lm_head.safetensors")
    return root


def convert_with(source: Path, head_root: Path, out: Path, choices: Any = "mc_sim_7b_63", **how: Any) -> Path:
    """Convert a model together with the heads at `head_root`."""
    return convert(
        source, out, load_head=lambda target: load_head(head_root, "medusa", {"choices": choices}, target), **how
    )


def logits_of(heads: Tensors, head: int, hidden: Tensor) -> Tensor:
    """Return a head's logits for hidden states [n, hidden]: blocks x + silu(linear(x)), then the vocabulary matrix."""
    wide = {name: tensor.float() for name, tensor in heads.items() if name.startswith(f"{head}.")}
    num_layers = len(wide) // 2
    for layer in range(num_layers):
        weight, bias = wide[f"{head}.{layer}.linear.weight"], wide[f"{head}.{layer}.linear.bias"]
        hidden = hidden + F.silu(F.linear(hidden, weight, bias))
    return hidden @ wide[f"{head}.{num_layers}.weight"].T


@torch.inference_mode()
def hidden_states(model: Any, text: Sequence[int]) -> Tensor:
    """Return transformers' hidden states after the final norm [len(text), hidden]."""
    states: Tensor = model.model(torch.tensor([list(text)])).last_hidden_state[0]
    return states


def knowing_heads(model: Any, texts: Sequence[Sequence[int]], num_heads: int) -> Tensors:
    """Return heads whose vocabulary matrix is fitted by least squares to the tokens head + 2 positions ahead."""
    heads = random_heads(num_heads)
    for head in range(num_heads):
        shift = head + 2
        states = torch.cat([hidden_states(model, text)[:-shift] for text in texts])
        follows = torch.cat([torch.tensor(list(text[shift:])) for text in texts])
        reached = logits_of(heads | {f"{head}.1.weight": torch.eye(HIDDEN)}, head, states)
        fitted = torch.linalg.lstsq(reached, F.one_hot(follows, VOCAB).float()).solution
        heads[f"{head}.1.weight"] = fitted.T.contiguous().bfloat16()
    return heads
