# SPDX-License-Identifier: Apache-2.0
"""A copy of an artifact in which the null engine takes the place of the engine."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path

from google.protobuf import text_format

from benchmarks.front_stages.null_engine import Steps
from trtspec.serving.triton.config import load_config
from trtspec.serving.triton.names import ENSEMBLE, TARGET
from trtspec.serving.triton.repository_writer import CONFIG

CODE = """from benchmarks.front_stages.served_model import TritonPythonModel

__all__ = ["TritonPythonModel"]
"""


def null_artifact(artifact: Path, out: Path, steps: Steps, streams: int) -> None:
    """Write the copy to `out`, in which the engine and `ensemble` take `streams` requests at once."""
    shutil.copytree(artifact, out, symlinks=True, ignore=shutil.ignore_patterns("*.safetensors"))
    target = out / "model_repository" / TARGET
    config = load_config(target / CONFIG)
    values = {
        "null_engine": json.dumps(asdict(steps)),
        "max_seq_len": "65536",
        "max_input_len": "4096",
        "gpu_device_ids": "",
        "token_channels": "true",
    }
    for key, value in values.items():
        config.parameters[key].string_value = value
    config.max_batch_size = streams
    (target / CONFIG).write_text(text_format.MessageToString(config), encoding="utf-8")
    ensemble = out / "model_repository" / ENSEMBLE / CONFIG
    config = load_config(ensemble)
    config.max_batch_size = streams
    config.dynamic_batching.default_queue_policy.max_queue_size = streams
    ensemble.write_text(text_format.MessageToString(config), encoding="utf-8")
    (target / "1" / "model.py").write_text(CODE, encoding="utf-8")
