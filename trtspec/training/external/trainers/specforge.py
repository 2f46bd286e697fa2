# SPDX-License-Identifier: Apache-2.0
"""SpecForge of the SGLang project: sgl-project/SpecForge:specforge/config/schema.py@a6b6b02.

It reads rows unchanged (`data.prompts_path`) and starts from the draft (`draft_checkpoint_path`). Hidden states come
from an SGLang server that it starts on another GPU (`managed_local`), and are transferred in memory. Families are from
its examples/configs; DFlash nets are z-lab's.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.methods.draft_formats.base import WEIGHTS
from trtspec.training.external.base import (
    DRAFT,
    EPOCHS,
    EXPORTED,
    Config,
    Count,
    ExternalTrainer,
    Kind,
    KnownKind,
    Name,
    Rate,
    TrainingJob,
)
from trtspec.training.texts import TrainingText

MAPPING, OUTPUT = "vocab_mapping.pt", "output"
HEADS = ("eagle3", "peagle")  # these need a vocabulary mapping, even if it is the identity


class SpecForgeModel(Config):
    """`model`."""

    target_model_path: Name
    draft_model_config: Name
    draft_checkpoint_path: Name
    vocab_mapping_path: Name | None


class SpecForgeData(Config):
    """`data`."""

    prompts_path: Name
    max_length: Count
    cache_dir: Name


class SpecForgeTraining(Config):
    """`training`."""

    strategy: KnownKind
    num_epochs: Count
    max_steps: Count | None
    batch_size: Literal[1]
    learning_rate: Rate
    ttt_length: Count | None
    num_depths: Count | None
    norm_before_residual: bool | None
    attention_backend: Literal["flex_attention"]
    save_interval: Count
    seed: int


class CaptureServer(Config):
    """An entry of `deployment.disaggregated.managed_local.capture_servers`."""

    port: Count
    cuda_visible_devices: tuple[Name, ...]


class Stack(Config):
    """`deployment.disaggregated.managed_local`."""

    trainer_cuda_visible_devices: tuple[Name, ...]
    capture_servers: tuple[CaptureServer, ...]


class Disaggregated(Config):
    """`deployment.disaggregated`."""

    control_dir: Name
    backend: Literal["mooncake"]
    managed_local: Stack


class SpecForgeDeployment(Config):
    """`deployment`."""

    mode: Literal["disaggregated"]
    disaggregated: Disaggregated


class SpecForgeRun(Config):
    """The configuration file of `specforge train --config`."""

    model: SpecForgeModel
    data: SpecForgeData
    training: SpecForgeTraining
    deployment: SpecForgeDeployment
    run_id: Name
    output_dir: Name


LOCAL = SpecForgeDeployment(
    mode="disaggregated",
    disaggregated=Disaggregated(
        control_dir=f"{OUTPUT}/control",
        backend="mooncake",
        managed_local=Stack(
            trainer_cuda_visible_devices=("1",),
            capture_servers=(CaptureServer(port=30000, cuda_visible_devices=("0",)),),
        ),
    ),
)


def config(job: TrainingJob) -> SpecForgeRun:
    """Return the configuration of a job."""
    is_head, name = job.kind.name in HEADS, job.kind.name
    return SpecForgeRun(
        model=SpecForgeModel(
            target_model_path=job.target,
            draft_model_config=f"{DRAFT}/config.json",
            draft_checkpoint_path=DRAFT,
            vocab_mapping_path=MAPPING if is_head else None,
        ),
        data=SpecForgeData(prompts_path="rows.jsonl", max_length=job.longest, cache_dir="cache"),
        training=SpecForgeTraining(
            strategy=name,
            num_epochs=EPOCHS,
            max_steps=job.steps,
            batch_size=1,
            learning_rate=job.learning_rate,
            ttt_length=job.draft_len if name == "eagle3" else None,
            num_depths=job.draft_len if name == "peagle" else None,
            norm_before_residual=job.draft.get("norm_before_residual") if name == "peagle" else None,
            attention_backend="flex_attention",
            save_interval=1000,
            seed=job.settings.seed,
        ),
        deployment=LOCAL,
        run_id="draft",
        output_dir=OUTPUT,
    )


def commands(job: TrainingJob) -> str:
    """Return the commands."""
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

        from trtspec.training.vocabulary import stored_maps

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
