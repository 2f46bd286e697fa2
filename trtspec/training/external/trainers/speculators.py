# SPDX-License-Identifier: Apache-2.0
"""External trainer: speculators of the vLLM project.

Source: vllm-project/speculators:src/speculators/train/config/schema.py@v0.9.0. Rows pass through `prepare-data`
unchanged. Hidden states come from a vLLM server during training and are deleted after reading
(vllm-project/speculators:scripts/launch_vllm.py@v0.9.0). Training starts from the draft with its vocabulary and layers,
so options that change its shape are not allowed. Families are from the README's table.
"""

from __future__ import annotations

import json
from typing import Any

from trtspec.training.external.base import DRAFT, EPOCHS, ExternalTrainer, Kind, TrainingJob

PACKED = 2048  # tokens that rows are packed to; the longest row if that is longer
SAVED = "checkpoints"
DIALECT = "speculators"


def config(job: TrainingJob) -> dict[str, Any]:
    """Return the configuration file of `speculators train --config`."""
    name = job.kind.name
    return {
        "train": {
            "speculator_type": name,
            "seed": job.seed,
            "verifier": {"verifier_name_or_path": job.target},
            "draft": {"from_pretrained": DRAFT},
            "data": {"data_path": "data", "total_seq_len": _packed(job)},
            "loss": {"ttt_steps": job.draft_len} if name == "eagle3" else None,
            "optimizer": {"lr": job.learning_rate},
            "trainer": {"epochs": EPOCHS, "save_best": True, "save_path": SAVED, "max_steps": job.steps},
            "peagle": {"num_depths": job.draft_len} if name == "peagle" else None,
        }
    }


def _packed(job: TrainingJob) -> int:
    return max(PACKED, job.longest)


def commands(job: TrainingJob) -> str:
    """Return a script that prepares data, starts vLLM and trains; vLLM writes the hidden states the draft reads."""
    layers = [*job.captured, *({job.layers} - {*job.captured})]
    draft = {"hf_config": {"eagle_aux_hidden_state_layer_ids": layers}}
    speculative = {"method": "extract_hidden_states", "num_speculative_tokens": 1, "draft_model_config": draft}
    return f"""\
speculators prepare-data --model "$TARGET" --data rows.jsonl --output data --seq-length {_packed(job)}
connector='{{"kv_connector": "ExampleHiddenStatesConnector", "kv_role": "kv_producer",
  "kv_connector_extra_config": {{"shared_storage_path": "'"$PWD"'/hidden_states"}}}}'
CUDA_VISIBLE_DEVICES=${{SERVER_GPU:-0}} vllm serve "$TARGET" --host 127.0.0.1 --port 8000 \\
  --speculative_config '{json.dumps(speculative)}' \\
  --kv_transfer_config "$connector" > vllm.log 2>&1 &
server=$!
trap 'kill "$server"' EXIT
tries=0
until curl -sf http://127.0.0.1:8000/health; do
  tries=$((tries + 1))
  if [ "$tries" -gt 900 ] || ! kill -0 "$server"; then echo "vLLM did not start: see vllm.log" >&2; exit 1; fi
  sleep 2
done
CUDA_VISIBLE_DEVICES=${{TRAINER_GPU:-1}} speculators train --config run.yaml --verifier-name-or-path "$TARGET"
"""


TRAINER = ExternalTrainer(
    title="speculators",
    version="0.9.0",
    source="https://github.com/vllm-project/speculators",
    kinds={
        "eagle3": Kind("eagle3", DIALECT),
        "p_eagle": Kind("peagle", DIALECT),
        "dflash": Kind("dflash", DIALECT),
        "dspark": Kind("dspark", DIALECT),
    },
    families=frozenset({"llama", "qwen3"}),
    needs="two GPUs, and in one environment `pip install speculators==0.9.0 vllm`",
    result=f"{SAVED}/checkpoint_best",
    config=config,
    commands=commands,
)
