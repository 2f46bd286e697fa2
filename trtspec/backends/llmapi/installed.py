# SPDX-License-Identifier: Apache-2.0
"""Validate a model.yaml with the classes of the installed TensorRT-LLM, if there is one.

The arguments vary between versions, and trtspec's data may be wrong. Importing tensorrt_llm is slow and initialises
CUDA and MPI, so a separate process does it (`probe`), with a timeout.
"""

from __future__ import annotations

import json
import logging
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trtspec.core.errors import DeployError, TrtspecError
from trtspec.store.manifest import Manifest

log = logging.getLogger(__name__)

TIMEOUT_S = 300.0
PROBE = "trtspec.backends.llmapi.probe"


def check_installed(artifact: Path, manifest: Manifest) -> None:
    """Raise DeployError if tensorrt_llm is missing in this interpreter, which runs the served model."""
    if find_spec("tensorrt_llm"):
        return
    hint = f"pip install tensorrt_llm=={manifest.recipe.engine.version}, or deploy in NVIDIA's container for it"
    raise DeployError("the Python package tensorrt_llm is not installed here", where=sys.executable, hint=hint)


def validate_installed(document: dict[str, Any], timeout_s: float = TIMEOUT_S) -> list[str]:
    """Return all objections of the installed LLM API to a model.yaml; empty if it is not installed.

    Raise TrtspecError if the check itself fails.
    """
    if not find_spec("tensorrt_llm"):
        return []
    command = [sys.executable, "-m", PROBE]
    log.info("running %s", shlex.join(command))
    try:
        process = subprocess.run(
            command, input=json.dumps(document), capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise TrtspecError(f"importing tensorrt_llm took more than {timeout_s:.3g} s") from None
    output = process.stdout.splitlines()[-1:]  # tensorrt_llm prints other lines before it during import
    if process.returncode or not output:
        last = "\n".join(process.stderr.splitlines()[-5:])
        raise TrtspecError(
            f"the installed tensorrt_llm cannot be imported:\n{last}", hint="python -c 'import tensorrt_llm'"
        )
    problems: list[str] = json.loads(output[0])
    return problems
