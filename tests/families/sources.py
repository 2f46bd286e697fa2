# SPDX-License-Identifier: Apache-2.0
"""Helpers that modify a saved source and check the resulting error."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests._support.tiny import convert
from trtspec.core.errors import CheckpointError


def edit(root: Path, **values: Any) -> None:
    """Set keys of config.json; a key with the value None is removed."""
    config = json.loads((root / "config.json").read_text()) | values
    (root / "config.json").write_text(json.dumps({key: value for key, value in config.items() if value is not None}))


def rewrite(root: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    """Save the tensors after `change` has modified them."""
    tensors = load_file(root / "model.safetensors")
    change(tensors)
    save_file(tensors, root / "model.safetensors")


def refused(root: Path, message: str) -> None:
    """Assert that a conversion fails with `message` in the error."""
    with pytest.raises(CheckpointError) as caught:
        convert(root, root.parent / "c")
    assert message in str(caught.value)
