# SPDX-License-Identifier: Apache-2.0
"""Nets that draft in parallel for the quickstart target, for benchmarks/methods.py; by `trtspec train`, from nothing.

    python benchmarks/method_nets.py --out DIR [--steps 600] [--nets p_eagle dflash dspark pard]

* p_eagle: the quickstart's EAGLE-3 head with a mask token, trained further.
* dflash: a net of two layers, trained from random weights.
* dspark: that net with a Markov head of zeros, which says nothing: what the head costs, not what it would bring.
* pard: the quickstart's draft model with a mask token. Nothing trains those, so that it is right about its first token
  alone: what drafting so costs.

The prompts are beginnings of documents like those that the quickstart's pair was trained on, from another seed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.train_prompts import beginning, write
from trtspec.paths import recipes_dir

MODELS = recipes_dir() / "models"
HIDDEN, HEADS, KV_HEADS, SIZE, INNER, VOCAB, LAYERS = 384, 6, 2, 64, 512, 1024, 6  # of the target, INNER of the net
READ, BLOCK, RANK = (0, 2, 4), 8, 32
MASK = 1000  # a row that is no token of the target's
SEED, EACH = 31, 100
WITHIN_S = 3600.0

Tensors = dict[str, Tensor]


def config(**more: Any) -> dict[str, Any]:
    sizes = {
        "hidden_size": HIDDEN, "intermediate_size": INNER, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "head_dim": SIZE, "vocab_size": VOCAB, "max_position_embeddings": 1024,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "num_hidden_layers": 2, "num_target_layers": LAYERS,
    }  # fmt: skip
    return sizes | {"model_type": "qwen3", "dtype": "bfloat16", "block_size": BLOCK} | more


def dflash(out: Path) -> None:
    """Write a net of random weights, as z-lab's are."""
    draw = torch.Generator().manual_seed(SEED)

    def matrix(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw) * 0.02

    tensors: Tensors = {"fc.weight": matrix(HIDDEN, len(READ) * HIDDEN)}
    tensors |= {f"{name}.weight": torch.ones(HIDDEN) for name in ("hidden_norm", "norm")}
    for number in range(2):
        matrices = {
            "self_attn.q_proj": (HEADS * SIZE, HIDDEN), "self_attn.k_proj": (KV_HEADS * SIZE, HIDDEN),
            "self_attn.v_proj": (KV_HEADS * SIZE, HIDDEN), "self_attn.o_proj": (HIDDEN, HEADS * SIZE),
            "mlp.gate_proj": (INNER, HIDDEN), "mlp.up_proj": (INNER, HIDDEN), "mlp.down_proj": (HIDDEN, INNER),
        }  # fmt: skip
        norms = {"input_layernorm": HIDDEN, "post_attention_layernorm": HIDDEN, "self_attn.q_norm": SIZE,
                 "self_attn.k_norm": SIZE}  # fmt: skip
        tensors |= {f"layers.{number}.{name}.weight": matrix(*shape) for name, shape in matrices.items()}
        tensors |= {f"layers.{number}.{name}.weight": torch.ones(width) for name, width in norms.items()}
    inner = {"mask_token_id": MASK, "target_layer_ids": list(READ)}
    save(out, config(architectures=["DFlashDraftModel"], dflash_config=inner), tensors)


def dspark(out: Path, net: Path) -> None:
    """Write a trained net with a head that says nothing."""
    found = json.loads((net / "config.json").read_text())
    found |= {"architectures": ["DSparkDraftModel"], "sample_from_anchor": False}
    found["dflash_config"] |= {"markov_rank": RANK, "markov_head_type": "vanilla"}
    heads = {f"markov_head.markov_w{part}.weight": torch.zeros(VOCAB, RANK) for part in (1, 2)}
    save(out, found, load_file(net / "model.safetensors") | heads)


def p_eagle(out: Path) -> None:
    """Write the EAGLE-3 head with what stands at masks."""
    head = MODELS / "quickstart-eagle3"
    states = {"mask_hidden": torch.zeros(1, 1, 3 * HIDDEN)}
    save(out, json.loads((head / "config.json").read_text()) | {"mask_token_id": MASK},
         load_file(head / "model.safetensors") | states)  # fmt: skip


def pard(out: Path) -> None:
    """Write the draft model with the mask token in its config."""
    shutil.copytree(MODELS / "quickstart-draft", out, dirs_exist_ok=True)
    found = json.loads((out / "config.json").read_text())
    (out / "config.json").write_text(json.dumps(found | {"pard_token": MASK}))


def save(out: Path, document: dict[str, Any], tensors: Tensors) -> None:
    out.mkdir(parents=True, exist_ok=True)
    (out / "config.json").write_text(json.dumps(document, indent=1))
    kept = {name: each if name in ("d2t", "t2d") else each.bfloat16() for name, each in tensors.items()}
    save_file(kept, out / "model.safetensors")


def train(method: str, make: Callable[[Path], None], out: Path, steps: int, work: Path) -> None:
    """Train a net as a user does."""
    make(work / method)
    draw = Random(SEED)
    write(work / "prompts.jsonl", [(kind, beginning(kind, draw)) for kind in ("log", "json", "code") * EACH])
    sets = {"method": method, "draft.model": work / method, "draft_len": 7}
    overrides = [part for key, value in sets.items() for part in ("--set", f"speculation.{key}={value}")]
    command = [sys.executable, "-m", "trtspec", "train", "quickstart", *overrides, "--prompts", work / "prompts.jsonl",
               "--max-tokens", "48", "--steps", steps, "--minutes", "60", "--out", out]  # fmt: skip
    done = subprocess.run([*map(str, command)], check=False, timeout=WITHIN_S, stdout=sys.stderr)
    if done.returncode:
        sys.exit(f"{method} was not trained: exit code {done.returncode}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--nets", nargs="+", default=("p_eagle", "dflash", "dspark", "pard"))
    asked = parser.parse_args()
    with TemporaryDirectory() as work:
        for method, make in (("p_eagle", p_eagle), ("dflash", dflash)):
            if method in asked.nets:
                train(method, make, asked.out / method, asked.steps, Path(work))
    if "dspark" in asked.nets:
        dspark(asked.out / "dspark", asked.out / "dflash")
    if "pard" in asked.nets:
        pard(asked.out / "pard")


if __name__ == "__main__":
    main()
