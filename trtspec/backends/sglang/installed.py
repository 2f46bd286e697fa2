# SPDX-License-Identifier: Apache-2.0
"""Whether the SGLang of an artifact is on this machine, where its model is going to import it."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

from trtspec.core.errors import DeployError
from trtspec.core.processes import installed_version
from trtspec.store.manifest import Manifest

PACKAGE = "sglang"


def check_installed(artifact: Path, manifest: Manifest) -> None:
    """Raise DeployError where the served model could not import SGLang, or would import another version."""
    wanted, found = manifest.recipe.engine.version, installed_version(PACKAGE)
    hint = f"pip install {PACKAGE}=={wanted}"
    if not find_spec(PACKAGE):
        raise DeployError(f"the Python package {PACKAGE} is not installed here", where=sys.executable, hint=hint)
    if found and found != wanted:
        message = f"SGLang {found} is installed here, and the recipe was checked for {wanted}"
        raise DeployError(message, where=sys.executable, hint=f"{hint}, or build with --set engine.version={found}")
