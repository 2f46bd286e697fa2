# SPDX-License-Identifier: Apache-2.0
"""Tiny block nets and P-EAGLE nets as sources, in each dialect of published nets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from tests._support.tiny import SHAPE

MASK, BLOCK, RANK, OUTPUTS = 5, 8, 4, (0, 1)  # OUTPUTS: layers of the target whose outputs are read
KEYS = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads",
        "vocab_size", "max_position_embeddings")  # fmt: skip
MARKOV = {"markov_rank": RANK, "markov_head_type": "vanilla"}
CONFIDENCE = {"enable_confidence_head": True, "confidence_head_with_markov": True}


def layer_config(layers: int = 2) -> dict[str, Any]:
    """Return config.json of a net's layers."""
    shape = {key: SHAPE[key] for key in KEYS}
    extra = {"head_dim": 8, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "num_hidden_layers": layers}
    return {**shape, **extra, "model_type": "qwen3", "dtype": "bfloat16"}


def layer_tensors(number: int, width: int = 1) -> dict[str, Tensor]:
    """Return a layer of zeros whose attention input has `width` times the hidden size."""
    hidden, inter, heads, kv_heads = (SHAPE[key] for key in KEYS[:4])
    shapes = {
        "input_layernorm": (hidden,), "post_attention_layernorm": (hidden,),
        "self_attn.q_proj": (heads * 8, width * hidden), "self_attn.k_proj": (kv_heads * 8, width * hidden),
        "self_attn.v_proj": (kv_heads * 8, width * hidden), "self_attn.o_proj": (hidden, heads * 8),
        "mlp.gate_proj": (inter, hidden), "mlp.up_proj": (inter, hidden), "mlp.down_proj": (hidden, inter),
    }  # fmt: skip
    return {f"layers.{number}.{name}.weight": torch.zeros(shape) for name, shape in shapes.items()}


def net_tensors(markov: str | None = None) -> dict[str, Tensor]:
    """Return a block net of zeros; `markov` is the prefix of the Markov head's tensors, None for no Markov head."""
    hidden, vocab = SHAPE["hidden_size"], SHAPE["vocab_size"]
    found = {"fc.weight": torch.zeros(hidden, len(OUTPUTS) * hidden)}
    found |= {f"{name}.weight": torch.zeros(hidden) for name in ("hidden_norm", "norm")}
    for number in range(2):
        found |= layer_tensors(number)
        found |= {f"layers.{number}.self_attn.{name}_norm.weight": torch.zeros(8) for name in "qk"}
    if markov is not None:
        found |= {f"{markov}markov_w1.weight": torch.zeros(vocab, RANK)}
        found |= {f"{markov}markov_w2.weight": torch.zeros(vocab, RANK)}
        name = "confidence_head.proj" if markov else "confidence_proj"
        found |= {f"{name}.weight": torch.zeros(1, hidden + RANK), f"{name}.bias": torch.zeros(1)}
    return found


def speculators(kind: str, tokens: int, **keys: Any) -> dict[str, Any]:
    """Return a config.json in speculators' format."""
    return {
        "speculators_model_type": kind,
        "transformer_layer_config": layer_config(),
        "speculators_config": {
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": tokens}],
            "verifier": {"name_or_path": "target"},
        },
        "draft_vocab_size": SHAPE["vocab_size"], "block_size": BLOCK, "mask_token_id": MASK,
        "aux_hidden_state_layer_ids": [number + 1 for number in OUTPUTS], **keys,
    }  # fmt: skip


INNER = {"mask_token_id": MASK, "target_layer_ids": list(OUTPUTS)}
FLAT = {**layer_config(), "block_size": BLOCK, "num_target_layers": SHAPE["num_hidden_layers"]}
# a dialect's config.json, the prefix of its Markov head, and the drafted tokens per step
DFLASH: dict[str, tuple[dict[str, Any], str | None, int]] = {
    "z-lab": ({**FLAT, "architectures": ["DFlashDraftModel"], "dflash_config": INNER}, None, BLOCK - 1),
    "block within": (
        {**layer_config(), "dflash_config": {**INNER, "block_size": BLOCK}, "architectures": ["DFlashDraftModel"]},
        None,
        BLOCK - 1,
    ),
    "speculators": (speculators("dflash", BLOCK - 1), None, BLOCK - 1),
}
DSPARK: dict[str, tuple[dict[str, Any], str | None, int]] = {
    "DeepSpec": (
        {**FLAT, **INNER, **MARKOV, **CONFIDENCE, "architectures": ["Qwen3DSparkModel"]},
        "markov_head.",
        BLOCK,
    ),
    "z-lab": (
        {**FLAT, "architectures": ["DSparkDraftModel"], "dflash_config": {**INNER, **MARKOV, **CONFIDENCE}},
        "markov_head.",
        BLOCK,
    ),
    "ModelOpt": (
        {
            **FLAT,
            "architectures": ["DFlashDraftModel"],
            "dflash_config": {**INNER, **MARKOV, "projector_type": "dspark", "use_confidence_head": True},
        },
        "",
        BLOCK,
    ),
    "speculators": (
        speculators("dspark", BLOCK, **MARKOV, **CONFIDENCE, sample_from_anchor=True),
        "markov_head.",
        BLOCK,
    ),
}


def save_net(root: Path, config: dict[str, Any], tensors: dict[str, Tensor], **changes: Any) -> Path:
    """Save a net; `changes` are changed keys of config.json, None removes a key."""
    root.mkdir(parents=True)
    written = {key: value for key, value in {**config, **changes}.items() if value is not None}
    (root / "config.json").write_text(json.dumps(written))
    kept = {name: value if name in ("d2t", "t2d") else value.bfloat16() for name, value in tensors.items()}
    save_file(kept, root / "model.safetensors")
    return root
