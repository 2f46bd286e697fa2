# SPDX-License-Identifier: Apache-2.0
"""`vllm serve` and Dynamo's worker on the checkpoints of an artifact: model.json as options of the command line.

vllm-project/vllm:vllm/engine/arg_utils.py@v0.33.0 (every field of EngineArgs is an option of its name).
"""

from __future__ import annotations

import json
from pathlib import Path

from trtspec.backends.common.standalone import options, with_absolute_paths
from trtspec.backends.serving import StandaloneServer
from trtspec.backends.vllm.files import MODEL_JSON


def alone(repository: Path, artifact: str) -> StandaloneServer:
    """Return the command line of vLLM without Triton."""
    document = json.loads((repository / MODEL_JSON).read_text(encoding="utf-8"))
    document = with_absolute_paths(document, MODEL_JSON.parts[0], artifact)
    model = document.pop("model")
    arguments = options(document)
    return StandaloneServer(
        framework="vllm",
        serve=("vllm", "serve", model, *arguments),
        arguments=(f"--model={model}", *arguments),
    )
