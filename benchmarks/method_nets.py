# SPDX-License-Identifier: Apache-2.0
"""Train parallel drafting nets for the quickstart target with `trtspec train`, for benchmarks/methods.py.

    python benchmarks/method_nets.py --out DIR [--steps 300] [--nets p_eagle dflash pard]
* dflash: a net of two layers, from scratch.
* p_eagle: the quickstart's EAGLE-3 head with a mask token, trained further.
* pard: the quickstart's draft model with a mask token. It cannot be trained, so only its first token is accurate; it
  measures the cost of this kind of drafting.

The prompts come from recipes/models/slices.py; recipes/models/quickstart-dspark was also trained on them.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import load_file, save_file

RECIPES = Path(__file__).parents[1] / "recipes"
MODELS, JUDGING = RECIPES / "models", RECIPES / "prompts" / "quickstart.jsonl"
HIDDEN = 384  # the target's hidden size
MASK = 1000  # an embedding row that is not used by the target's tokens
DRAFT_LEN, MAX_TOKENS = 7, 96
WITHIN_S = 5400.0


def p_eagle(work: Path) -> dict[str, Any]:
    """Write the EAGLE-3 head with mask inputs."""
    head, out = MODELS / "quickstart-eagle3", work / "p_eagle-before"
    out.mkdir()
    (out / "config.json").write_text(
        json.dumps(json.loads((head / "config.json").read_text()) | {"mask_token_id": MASK})
    )
    states = {"mask_hidden": torch.zeros(1, 1, 3 * HIDDEN, dtype=torch.bfloat16)}
    save_file(load_file(head / "model.safetensors") | states, out / "model.safetensors")
    return {"draft": {"model": str(out)}}


def pard(out: Path) -> None:
    """Write the draft model with the mask token in its config."""
    shutil.copytree(MODELS / "quickstart-draft", out, dirs_exist_ok=True)
    found = json.loads((out / "config.json").read_text())
    (out / "config.json").write_text(json.dumps(found | {"pard_token": MASK}))


def train(method: str, more: dict[str, Any], out: Path, steps: int, work: Path) -> None:
    """Train a net with the command."""
    recipe, prompts = work / f"{method}.yaml", work / "slices.jsonl"
    document = {
        "schema": "trtspec.recipe/1",
        "name": method,
        "target": {"model": str(MODELS / "quickstart-target")},
        "speculation": {"method": method, "draft_len": DRAFT_LEN, **more},
        "engine": {"max_seq_len": 1024},
    }
    recipe.write_text(json.dumps(document))
    with prompts.open("w") as file:
        run([MODELS / "slices.py", "--but", JUDGING], stdout=file)
    command = ["-m", "trtspec", "train", recipe, "--prompts", prompts, "--held-out", JUDGING]
    sizes = ["--max-tokens", MAX_TOKENS, "--steps", steps, "--max-minutes", WITHIN_S / 60]
    run([*command, *sizes, *([] if more else ["--layers", 2]), "--out", out], stdout=sys.stderr)


def run(words: list[Any], stdout: Any) -> None:
    done = subprocess.run([sys.executable, *map(str, words)], check=False, timeout=2 * WITHIN_S, stdout=stdout)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, words))}: exit code {done.returncode}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--nets", nargs="+", default=("p_eagle", "dflash", "pard"))
    asked = parser.parse_args()
    with TemporaryDirectory() as place:
        work = Path(place)
        if "p_eagle" in asked.nets:
            train("p_eagle", p_eagle(work), asked.out / "p_eagle", asked.steps, work)
        if "dflash" in asked.nets:
            train("dflash", {}, asked.out / "dflash", asked.steps, work)
    if "pard" in asked.nets:
        pard(asked.out / "pard")


if __name__ == "__main__":
    main()
