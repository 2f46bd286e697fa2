# SPDX-License-Identifier: Apache-2.0
"""trtllm-serve and Dynamo's worker on the checkpoints of an artifact: model.yaml without its Triton-specific keys.

NVIDIA/TensorRT-LLM:tensorrt_llm/commands/serve.py@v1.2.1 (--extra_llm_api_options, a file of LLM's arguments).
"""

from __future__ import annotations

from pathlib import Path

import yaml

from trtspec.backends.common.standalone import with_absolute_paths
from trtspec.backends.llmapi.repository import MODEL_YAML
from trtspec.backends.serving import StandaloneServer

ELSEWHERE = ("model", "triton_config")  # on the command line, and only for Triton
FILE = "llm.yaml"


def alone(repository: Path, artifact: str) -> StandaloneServer:
    """Return the command line of TensorRT-LLM without Triton."""
    document = yaml.safe_load((repository / MODEL_YAML).read_text(encoding="utf-8"))
    document = with_absolute_paths(document, MODEL_YAML.parts[0], artifact)
    arguments = {key: value for key, value in document.items() if key not in ELSEWHERE}
    model, path = document["model"], f"/config/{FILE}"
    return StandaloneServer(
        framework="trtllm",
        serve=("trtllm-serve", model, "--host=0.0.0.0", f"--extra_llm_api_options={path}"),
        arguments=(f"--model-path={model}", f"--extra-engine-args={path}"),
        files={FILE: yaml.safe_dump(arguments, sort_keys=True)},
    )
