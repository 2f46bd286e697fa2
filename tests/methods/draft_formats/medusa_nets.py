# SPDX-License-Identifier: Apache-2.0
"""Small random Medusa heads in every dialect that has them, for the target of `tests.methods.draft_formats.nets`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from tests.methods.draft_formats.nets import VOCAB, Config, make_target
from tests.methods.heads import HIDDEN, Tensors, random_heads

SIZES = {"hidden_size": HIDDEN, "vocab_size": VOCAB}
FASTERDECODING: Config = {"medusa_num_heads": 4, "base_model_name_or_path": "x", "transformers_version": "4.34.1"}
VLLM: Config = {
    "architectures": ["MedusaModel"], "model_type": "medusa", "num_heads": 4, **SIZES, "max_paths": 64, "topk": 10,
    "truncated_vocab_size": VOCAB, "max_seq_len": 1048576,
}  # fmt: skip


def save(root: Path, config: Config, tensors: Tensors, file: str = "model.safetensors") -> Path:
    """Write a draft's directory."""
    root.mkdir(parents=True)
    (root / "config.json").write_text(json.dumps(config))
    save_file(tensors, root / file)
    return root


def fasterdecoding(layers: int = 1, **config: Any) -> Callable[[Path], Path]:
    """Heads in the format of FasterDecoding's trainer, without sizes."""
    said = {**FASTERDECODING, "medusa_num_layers": layers, **config}
    return lambda root: save(root, said, random_heads(4, layers), "medusa_lm_head.safetensors")


def blocks_alone(root: Path) -> Path:
    """Heads in the format of FasterDecoding's trainer since "2", where all heads use the target's LM head."""
    tensors = {name: each for name, each in random_heads().items() if "linear" in name}
    said = {**FASTERDECODING, "medusa_num_layers": 1, "version": "2", **SIZES}
    return save(root, said, tensors, "medusa_lm_head.safetensors")


def by_vllms_names(tensors: Tensors) -> Tensors:
    """Return heads with the names of vLLM's class."""
    found = {re.sub(r"(\d+)\.(\d+)\.linear\.", r"blocks.\1.layers.\2.", name): each for name, each in tensors.items()}
    return {re.sub(r"^(\d+)\.\d+\.weight", r"lm_heads.\1.weight", name): each for name, each in found.items()}


def vllm(layers: int = 1, bias: bool = True, **config: Any) -> Callable[[Path], Path]:
    """Heads with the names of vLLM's class, with or without biases."""
    tensors = {name: each for name, each in random_heads(4, layers).items() if bias or not name.endswith("bias")}
    said = {**VLLM, "num_hidden_layers": layers, **({"medusa_fc_bias": True} if bias else {}), **config}
    return lambda root: save(root, said, by_vllms_names(tensors))


def sharing(name: str = "lm_head.weight") -> Callable[[Path], Path]:
    """Heads with the target's LM head, in vLLM's format."""

    def write(root: Path) -> Path:
        target = load_file(make_target(root.with_name("of")) / "model.safetensors")
        blocks = {name: each for name, each in random_heads().items() if "linear" in name}
        said = {**VLLM, "num_hidden_layers": 1, "medusa_fc_bias": True, "original_lm_head": True}
        return save(root, said, {**by_vllms_names(blocks), name: target["lm_head.weight"]})

    return write


def within(prefix: str, layers: int, **said: Any) -> Callable[[Path], Path]:
    """Heads in their target's files."""

    def write(root: Path) -> Path:
        target = make_target(root.with_name("base"))
        config = json.loads((target / "config.json").read_text())
        heads = {f"{prefix}{name}": each for name, each in random_heads(4, layers).items()}
        return save(root, {**config, **said}, {**load_file(target / "model.safetensors"), **heads})

    return write


modelopt = within("medusa_heads.", 2, medusa={"num_medusa_heads": 4, "num_medusa_layers": 2})
medusa_1_0 = within("medusa_head.", 1, medusa_num_heads=4, medusa_num_layers=1)


HEADS: dict[tuple[str, str], Callable[[Path], Path]] = {
    ("medusa", "fasterdecoding"): fasterdecoding(),
    ("medusa", "modelopt"): modelopt,
    ("medusa", "vllm"): vllm(layers=2),
}
