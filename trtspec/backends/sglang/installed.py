# SPDX-License-Identifier: Apache-2.0
"""Check that the artifact's version of SGLang is installed in the interpreter of the served model."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

from trtspec.core.errors import DeployError
from trtspec.core.processes import installed_version
from trtspec.store.manifest import Manifest

PACKAGE = "sglang"


def check_installed(artifact: Path, manifest: Manifest) -> None:
    """Raise DeployError if SGLang is missing or another version is installed."""
    wanted, found = manifest.recipe.engine.version, installed_version(PACKAGE)
    hint = f"pip install {PACKAGE}=={wanted}"
    if not find_spec(PACKAGE):
        raise DeployError(f"the Python package {PACKAGE} is not installed here", where=sys.executable, hint=hint)
    if found and found != wanted:
        message = f"SGLang {found} is installed, but the recipe was checked for {wanted}"
        raise DeployError(message, where=sys.executable, hint=f"{hint}, or build with --set engine.version={found}")
