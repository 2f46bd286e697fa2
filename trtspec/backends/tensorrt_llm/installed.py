# SPDX-License-Identifier: Apache-2.0
"""Asks this machine: which versions trtllm-build's interpreter has, and which GPUs the driver sees."""

from __future__ import annotations

import json
import logging
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trtspec.errors import TrtspecError
from trtspec.gpus import Gpu

log = logging.getLogger(__name__)

PROBE_TIMEOUT_S = 60.0
MOST_SCRIPT_BYTES = 4096
SMI = ("nvidia-smi", "--query-gpu=name,compute_cap,driver_version,memory.total", "--format=csv,noheader,nounits")
MOST_GIB_OFF = 2  # drivers report a little more or less than data sheets

# TensorRT's wheels are named after CUDA's version too.
_PROBE = """
import json
from importlib import metadata
def version(*names):
    return next((each.version for name in names for each in metadata.distributions(name=name)), None)
tensorrt = version("tensorrt", "tensorrt_cu13", "tensorrt_cu12")
print(json.dumps({"tensorrt_llm": version("tensorrt_llm"), "tensorrt": tensorrt}))
"""


@dataclass(frozen=True)
class SeenGpu:
    """A GPU as nvidia-smi describes it; `sm` is the compute capability times ten."""

    name: str
    sm: int
    driver: str
    mebibytes: int

    def is_a(self, gpu: Gpu) -> bool:
        """Return whether it is of the kind; of one product there are several sizes."""
        off = abs(self.mebibytes / 1024 - gpu.memory_bytes / 2**30)
        is_named = re.search(rf"\b{re.escape(gpu.product)}\b", self.name) is not None
        return is_named and self.sm == gpu.sm and off <= MOST_GIB_OFF


def installed_versions(builder: Path) -> tuple[str | None, str | None]:
    """Return the versions of (TensorRT-LLM, TensorRT) that a console script runs with, None for what is not there."""
    # from the root directory: an interpreter looks for modules where it is started
    said = _ask([*_interpreter(builder), "-c", _PROBE], str(builder), "reinstall it", cwd="/")
    try:
        found = json.loads(said)
        return found["tensorrt_llm"], found["tensorrt"]
    except (ValueError, KeyError, TypeError):
        raise TrtspecError(f"its interpreter says {said[:80]!r}, no versions", where=str(builder)) from None


def seen_gpus() -> list[SeenGpu]:
    """Return the GPUs in PCI order, none where there is no driver."""
    if not shutil.which(SMI[0]):
        return []
    lines = _ask(SMI, SMI[0], "repair the driver").splitlines()
    try:
        rows = [[part.strip() for part in line.split(",")] for line in lines if line.strip()]
        return [SeenGpu(name, int(sm.replace(".", "")), driver, int(memory)) for name, sm, driver, memory in rows]
    except ValueError:
        raise TrtspecError(f"says {lines[:4]}, which are no GPUs", where=SMI[0], hint="repair the driver") from None


def _ask(command: Sequence[str], where: str, hint: str, cwd: str | None = None) -> str:
    log.info("run %s", shlex.join(command))
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT_S,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            check=True,
        ).stdout
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip() or error.stdout.strip() or "nothing").splitlines()[-1]
        message = f"ended with exit status {error.returncode} and said: {last}"
    except (OSError, UnicodeDecodeError, subprocess.SubprocessError) as error:
        message = str(error)
    raise TrtspecError(f"cannot be asked: {message}", where=where, hint=hint)


def _interpreter(script: Path) -> list[str]:
    """Return the interpreter in a script's first line, or in its second, where pip puts a path that is too long."""
    with script.open("rb") as file:
        lines = file.read(MOST_SCRIPT_BYTES).decode(errors="replace").splitlines()
    words = lines[0][2:].split() if lines and lines[0].startswith("#!") else []
    if words == ["/bin/sh"] and len(lines) > 1 and (found := re.match(r"'''exec' (.+) \"\$0\"", lines[1])):
        words = shlex.split(found[1])
    if not words or "python" not in words[-1]:
        raise TrtspecError("not a Python program, as TensorRT-LLM's is", where=str(script), hint="look at PATH")
    return words
