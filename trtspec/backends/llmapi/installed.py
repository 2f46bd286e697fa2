# SPDX-License-Identifier: Apache-2.0
"""Hold a model.yaml against the classes of the TensorRT-LLM that is installed here, if one is.

What versions take drifts, and our data can be wrong. Importing tensorrt_llm takes long and initialises CUDA and MPI, so
another process does it (`probe`), with a deadline.
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
    """Raise DeployError where the served model could not import tensorrt_llm: it runs on this interpreter."""
    if find_spec("tensorrt_llm"):
        return
    hint = f"pip install tensorrt_llm=={manifest.recipe.engine.version}, or deploy in NVIDIA's container of it"
    raise DeployError("the Python package tensorrt_llm is not installed here", where=sys.executable, hint=hint)


def validate_installed(document: dict[str, Any], timeout_s: float = TIMEOUT_S) -> list[str]:
    """Return everything the installed LLM API says against a model.yaml; nothing where none is installed.

    Raises TrtspecError where the classes could not be asked.
    """
    if not find_spec("tensorrt_llm"):
        return []
    command = [sys.executable, "-m", PROBE]
    log.info("run %s", shlex.join(command))
    try:
        asked = subprocess.run(
            command, input=json.dumps(document), capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise TrtspecError(f"importing tensorrt_llm took more than {timeout_s:.3g} s") from None
    answer = asked.stdout.splitlines()[-1:]  # what tensorrt_llm prints while it is imported goes before
    if asked.returncode or not answer:
        last = "\n".join(asked.stderr.splitlines()[-5:])
        raise TrtspecError(
            f"the installed tensorrt_llm cannot be imported:\n{last}", hint="python -c 'import tensorrt_llm'"
        )
    problems: list[str] = json.loads(answer[0])
    return problems
