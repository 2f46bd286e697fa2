# SPDX-License-Identifier: Apache-2.0
"""External trainer: SpecForge of the SGLang project.

Source: sgl-project/SpecForge:specforge/config/schema.py@a6b6b02. SpecForge reads rows unchanged (`data.prompts_path`)
and starts from the draft (`draft_checkpoint_path`). Hidden states come from an SGLang server that SpecForge starts on
another GPU (`managed_local`), and are transferred in memory. Families are from its examples/configs and, for DFlash,
from z-lab's drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.methods.draft_formats.base import WEIGHTS
from trtspec.training.external.base import DRAFT, EPOCHS, EXPORTED, ExternalTrainer, Kind, TrainingJob
from trtspec.training.texts import TrainingText

MAPPING, OUTPUT = "vocab_mapping.pt", "output"
HEADS = ("eagle3", "peagle")  # these need a vocabulary mapping, even if it is the identity


# the hidden states come from a server that the trainer starts on another GPU
LOCAL = {
    "mode": "disaggregated",
    "disaggregated": {
        "control_dir": f"{OUTPUT}/control",
        "backend": "mooncake",
        "managed_local": {
            "trainer_cuda_visible_devices": ["1"],
            "capture_servers": [{"port": 30000, "cuda_visible_devices": ["0"]}],
        },
    },
}


def config(job: TrainingJob) -> dict[str, Any]:
    """Return the configuration file of `specforge train --config`."""
    is_head, name = job.kind.name in HEADS, job.kind.name
    return {
        "model": {
            "target_model_path": job.target,
            "draft_model_config": f"{DRAFT}/config.json",
            "draft_checkpoint_path": DRAFT,
            "vocab_mapping_path": MAPPING if is_head else None,
        },
        "data": {"prompts_path": "rows.jsonl", "max_length": job.longest, "cache_dir": "cache"},
        "training": {
            "strategy": name,
            "num_epochs": EPOCHS,
            "max_steps": job.steps,
            "batch_size": 1,
            "learning_rate": job.learning_rate,
            "ttt_length": job.draft_len if name == "eagle3" else None,
            "num_depths": job.draft_len if name == "peagle" else None,
            "norm_before_residual": job.draft.get("norm_before_residual") if name == "peagle" else None,
            "attention_backend": "flex_attention",
            "save_interval": 1000,
            "seed": job.seed,
        },
        "deployment": LOCAL,
        "run_id": "draft",
        "output_dir": OUTPUT,
    }


def commands(job: TrainingJob) -> str:
    mapping = f" --vocab-mapping {MAPPING}" if job.kind.name in HEADS else ""
    return f"""\
specforge train --config run.yaml model.target_model_path="$TARGET"
specforge export --to hf --checkpoint {OUTPUT} --draft-config {DRAFT}/config.json{mapping} \\
  --embedding-source "$TARGET" --output-dir {EXPORTED}
"""


def further(job: TrainingJob, root: Path, texts: Sequence[TrainingText], tokenizer: Tokenizer) -> int:
    """Write a head's vocabulary mapping: the draft's d2t and t2d."""
    if job.kind.name in HEADS:
        import torch

        from trtspec.training.tensors import stored_maps

        torch.save(stored_maps(root / DRAFT / WEIGHTS), root / MAPPING)
    return 0


TRAINER = ExternalTrainer(
    title="SpecForge",
    version="0.2.0",
    source="https://github.com/sgl-project/SpecForge",
    kinds={
        "eagle3": Kind("eagle3", "specforge"),
        "p_eagle": Kind("peagle", "specforge"),
        "dflash": Kind("dflash", "zlab"),
        "dspark": Kind("dspark", "specforge"),
    },
    families=frozenset({"gemma3", "llama", "phi3", "qwen2", "qwen3"}),
    needs=(
        "two GPUs, Mooncake, `pip install specforge==0.2.0`, and SGLang with the project's patch"
        " (scripts/apply_sglang_spec_capture_patch.sh of its repository)"
    ),
    result=EXPORTED,
    config=config,
    commands=commands,
    further=further,
)
