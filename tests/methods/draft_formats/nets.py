# SPDX-License-Identifier: Apache-2.0
"""Small random drafts of every kind in every dialect that supports it, for one random target."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests._support.tiny import SHAPE, make_llama
from tests.methods.block_nets import CONFIDENCE, DFLASH, DSPARK, MASK, net_tensors, save_net
from tests.methods.eagle3_heads import random_head, save_head
from tests.methods.test_parallel_drafts import DIALECTS as P_EAGLE
from tests.methods.test_parallel_drafts import tensors as p_eagle_tensors
from trtspec.checkpoints.safetensors import read_tensor
from trtspec.checkpoints.source import load_source

LAYERS = 8
VOCAB = SHAPE["vocab_size"]
Config = dict[str, Any]


def make_target(root: Path, seed: int = 0) -> Path:
    """Save a target of eight layers, so that EAGLE-3's three default layers are distinct."""
    return make_llama(root, seed, num_hidden_layers=LAYERS)


def random_values(tensors: dict[str, Tensor], seed: int = 1) -> dict[str, Tensor]:
    """Replace zeros by random numbers."""
    draw = torch.Generator().manual_seed(seed)
    return {name: torch.randn(tensor.shape, generator=draw).bfloat16() for name, tensor in tensors.items()}


def eagle3(layout: str) -> Callable[[Path], Path]:
    return lambda root: save_head(random_head((1, 2, 3)), root, layout, num_target_layers=None)


def block(config: Config, markov: str | None) -> Callable[[Path], Path]:
    layers = {"num_target_layers": LAYERS} if "num_target_layers" in config else {}
    return lambda root: save_net(root, config, random_values(net_tensors(markov)), **layers)


def p_eagle(config: Config) -> Callable[[Path], Path]:
    return lambda root: save_net(root, config, random_values(p_eagle_tensors()))


# (kind, detected dialect): function that saves a draft
NETS: dict[tuple[str, str], Callable[[Path], Path]] = {
    ("eagle3", "specforge"): eagle3("specforge"),
    ("eagle3", "modelopt"): eagle3("modelopt"),
    ("eagle3", "speculators"): eagle3("speculators"),
    ("p_eagle", "specforge"): p_eagle({**P_EAGLE["p-eagle-train"], "ptd_token_id": None, "mask_token_id": MASK}),
    ("p_eagle", "speculators"): p_eagle(P_EAGLE["speculators"]),
    ("dflash", "zlab"): block(*DFLASH["z-lab"][:2]),
    ("dflash", "modelopt"): block(
        {**DFLASH["z-lab"][0], "dflash_config": {**DFLASH["z-lab"][0]["dflash_config"], "causal": False}}, None
    ),
    ("dflash", "speculators"): block(*DFLASH["speculators"][:2]),
    ("dspark", "deepspec"): block({**DSPARK["DeepSpec"][0], **CONFIDENCE}, "markov_head."),
    ("dspark", "specforge"): block(
        {
            **DSPARK["z-lab"][0],
            "dflash_config": {
                **DSPARK["z-lab"][0]["dflash_config"],
                "projector_type": "dspark",
                "attention_mode": "gqa",
            },
        },
        "markov_head.",
    ),
    ("dspark", "modelopt"): block(*DSPARK["ModelOpt"][:2]),
    ("dspark", "speculators"): block(*DSPARK["speculators"][:2]),
}


def contents(root: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Return each tensor's dtype, shape and bytes."""
    tensors = load_source(root).tensors
    return {name: (each.dtype, each.shape, b"".join(read_tensor(each))) for name, each in tensors.items()}


def config_of(root: Path) -> Config:
    found: Config = json.loads((root / "config.json").read_text())
    return found


def changed(source: Path, root: Path, change: Callable[[Config, dict[str, Tensor]], None]) -> Path:
    """Copy a draft with its config.json and tensors changed."""
    shutil.copytree(source, root)
    config, tensors = config_of(root), load_file(root / "model.safetensors")
    change(config, tensors)
    (root / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, root / "model.safetensors")
    return root
