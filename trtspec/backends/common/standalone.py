# SPDX-License-Identifier: Apache-2.0
"""Convert the arguments of an engine's document in the repository to the engine's own command line."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping
from typing import Any

from trtspec.store.artifact_paths import REPOSITORY


def with_absolute_paths(value: Any, model: str, artifact: str) -> Any:
    """Return a value with its paths, relative to a model of the repository, made absolute for an artifact's path."""
    if isinstance(value, Mapping):
        return {key: with_absolute_paths(each, model, artifact) for key, each in value.items()}
    if isinstance(value, list):
        return [with_absolute_paths(each, model, artifact) for each in value]
    if isinstance(value, str) and value.startswith(("../", "./")):
        return posixpath.normpath(posixpath.join(artifact, REPOSITORY, model, value))
    return value


def options(document: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a document as options: --max-model-len=4096, --flag for true, JSON for objects and lists."""
    found = []
    for key, value in document.items():
        name = f"--{key.replace('_', '-')}"
        if value is True:
            found.append(name)
        elif value is not False and value is not None:
            text = json.dumps(value, sort_keys=True) if isinstance(value, dict | list) else value
            found.append(f"{name}={text}")
    return tuple(found)
