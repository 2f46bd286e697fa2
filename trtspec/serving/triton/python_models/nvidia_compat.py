# SPDX-License-Identifier: Apache-2.0
"""Requests as NVIDIA's models take them where a recipe has `serving.defaults: nvidia`: inputs that nothing acts on."""

from __future__ import annotations

from collections.abc import Collection

from trtspec.core.errors import TrtspecError
from trtspec.serving.triton.python_models.fields import NEUTRAL, UNSERVED
from trtspec.serving.triton.python_models.tensors import Array, RequestTensors, refuse_other_than


def refuse_unserved(inputs: RequestTensors, declared: Collection[str], engine: str) -> None:
    """Raise for the first of a model's declared inputs that asks for what is not done; empty ones ask for nothing."""
    names = UNSERVED.intersection(declared)
    refuse_other_than({name: NEUTRAL[name] for name in names & NEUTRAL.keys()}, inputs, engine)
    for name in sorted(names - NEUTRAL.keys()):
        if _asks(inputs.whole(name)):
            raise TrtspecError(f"{name} is not supported by {engine}", hint="leave it out")


def _asks(array: Array | None) -> bool:
    if array is None or array.size == 0:
        return False
    return any(array.reshape(-1).tolist()) if array.dtype == object else True
