# SPDX-License-Identifier: Apache-2.0
"""An engine's arguments, as a document of the repository has them, for the engine's own command line."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping
from typing import Any

from trtspec.store.artifact_paths import REPOSITORY


def absolute(value: Any, model: str, artifact: str) -> Any:
    """Return a value whose paths, relative to a model of the repository, are those of an artifact at a path."""
    if isinstance(value, Mapping):
        return {key: absolute(each, model, artifact) for key, each in value.items()}
    if isinstance(value, list):
        return [absolute(each, model, artifact) for each in value]
    if isinstance(value, str) and value.startswith(("../", "./")):
        return posixpath.normpath(posixpath.join(artifact, REPOSITORY, model, value))
    return value


def options(document: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a document as options: --max-model-len=4096, --flag for true, JSON for what has parts."""
    found = []
    for key, value in document.items():
        name = f"--{key.replace('_', '-')}"
        if value is True:
            found.append(name)
        elif value is not False and value is not None:
            said = json.dumps(value, sort_keys=True) if isinstance(value, dict | list) else value
            found.append(f"{name}={said}")
    return tuple(found)
