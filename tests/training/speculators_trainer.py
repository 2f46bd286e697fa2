# SPDX-License-Identifier: Apache-2.0
"""Read a job with speculators' own code: its configuration, its rows, and its initial draft.

speculators_trainer.py JOB TARGET: prints the parsed values, and writes a draft where the trainer would.
"""

import json
import sys
import warnings
from pathlib import Path

from datasets import load_dataset
from speculators.data_generation.preprocessing import build_speculator_training_dataset
from speculators.train.cli import main
from speculators.train.config import TrainConfig
from transformers import AutoTokenizer

if __name__ == "__main__":
    job, target = Path(sys.argv[1]), sys.argv[2]
    warnings.simplefilter("error", UserWarning)  # raised for unknown keys of run.yaml
    resolved = TrainConfig.resolve(["--config", str(job / "run.yaml"), "--verifier-name-or-path", target])
    warnings.simplefilter("default")
    raw = load_dataset("json", data_files=str(job / "rows.jsonl"), split="train", cache_dir=str(job / "cache"))
    tokenizer = AutoTokenizer.from_pretrained(target)
    data = build_speculator_training_dataset(raw, tokenizer, resolved.data.total_seq_len, num_proc=1)
    rows = [{key: each[key].tolist() for key in ("input_ids", "loss_mask")} for each in data]
    exported = job / resolved.trainer.save_path / "checkpoint_best"
    draft = ["--from-pretrained", str(job / resolved.draft.from_pretrained), "--save-path", str(exported)]
    attention = ["--draft-attn-impl", "eager", "--dry-run"]  # without a GPU and without training steps
    main(
        TrainConfig.resolve(["--config", str(job / "run.yaml"), "--verifier-name-or-path", target, *draft, *attention])
    )
    sys.stdout.write(json.dumps({"config": resolved.flatten(), "rows": rows}, default=str) + "\n")
