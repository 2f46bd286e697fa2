# SPDX-License-Identifier: Apache-2.0
"""Emit the Triton repository of TensorRT-LLM's LLM API: the models of the embedded engine's, but for tensorrt_llm.

ensemble: preprocessing -> tensorrt_llm (1/model.yaml says what LLM is started with) -> postprocessing
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from trtspec.triton.emission import Parameters, ServingSettings, emit_model

MODEL_YAML = Path("tensorrt_llm", "1", "model.yaml")


@dataclass(frozen=True, kw_only=True)
class LlmApiRepositorySettings(ServingSettings):
    """What differs from one repository to the next; lengths are in tokens.

    `gpu_ids` are the GPUs that the engine may see, all of them where there are none. With `greedy_only` requests that
    sample are refused.
    """

    max_input_len: int
    max_seq_len: int
    gpu_ids: tuple[int, ...] = ()
    greedy_only: bool = False
    tokenizer_path: str = "../../tokenizer"


def emit_llmapi_repository(out: Path, settings: LlmApiRepositorySettings, model_yaml: Mapping[str, Any]) -> None:
    """Write the models below `out`, a directory that is ours to fill.

    In `model_yaml` (backends/llmapi/model_yaml.py) paths are relative to the model's directory.
    """
    parameters: Parameters = {
        "tokenizer_dir": settings.tokenizer_path,
        "max_input_len": settings.max_input_len,
        "max_seq_len": settings.max_seq_len,
        "gpu_device_ids": ",".join(map(str, settings.gpu_ids)),
        "greedy_only": settings.greedy_only,
    }
    for model in ("ensemble", "preprocessing", "postprocessing"):
        emit_model(out, model, settings, parameters)
    emit_model(out, "tensorrt_llm", settings, parameters, template="tensorrt_llm_llmapi")
    (out / MODEL_YAML).write_text(yaml.safe_dump(dict(model_yaml), sort_keys=False), encoding="utf-8")
