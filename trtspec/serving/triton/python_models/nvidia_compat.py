# SPDX-License-Identifier: Apache-2.0
"""Rejection of unsupported inputs for recipes with `serving.defaults: nvidia`, whose models declare NVIDIA's inputs."""

from __future__ import annotations

from collections.abc import Collection

from trtspec.core.errors import TrtspecError
from trtspec.serving.triton.python_models.fields import NEUTRAL, UNSERVED
from trtspec.serving.triton.python_models.tensors import Array, RequestTensors, require_neutral


def check_unsupported_inputs(inputs: RequestTensors, declared: Collection[str], engine: str) -> None:
    """Raise TrtspecError for the first declared input that is unsupported and not empty or a no-op."""
    names = UNSERVED.intersection(declared)
    require_neutral({name: NEUTRAL[name] for name in names & NEUTRAL.keys()}, inputs, engine)
    for name in sorted(names - NEUTRAL.keys()):
        if _is_set(inputs.whole(name)):
            raise TrtspecError(f"{name} is not supported by {engine}", hint="leave it out")


def _is_set(array: Array | None) -> bool:
    if array is None or array.size == 0:
        return False
    return any(array.reshape(-1).tolist()) if array.dtype == object else True
