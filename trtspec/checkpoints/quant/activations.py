# SPDX-License-Identifier: Apache-2.0
"""The result of calibration: the largest magnitudes of linear layers' inputs and of the KV cache."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trtspec.checkpoints.source import read_json
from trtspec.core.errors import CheckpointError

SCHEMA = "trtspec.activations/1"
ACTIVATIONS = "activations.json"
MAX_BYTES = 16 << 20


@dataclass
class Activations:
    """Largest magnitudes by module name, e.g. transformer.layers.0.attention.qkv for its input.

    `keys` (after rotation) and `values` are those that the attention of transformer.layers.0.attention caches.
    """

    inputs: dict[str, float] = field(default_factory=dict)
    keys: dict[str, float] = field(default_factory=dict)
    values: dict[str, float] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Write the document; the float32 values are preserved exactly."""
        document = {"schema": SCHEMA, "inputs": self.inputs, "keys": self.keys, "values": self.values}
        path.write_text(json.dumps(document, indent=1) + "\n")


def load_activations(path: Path) -> Activations:
    """Return the document at `path`; raise CheckpointError if it is invalid."""
    document = read_json(path, MAX_BYTES)
    tables = [document.get(name) for name in ("inputs", "keys", "values")]
    if document.get("schema") != SCHEMA or not all(_is_table(table) for table in tables):
        raise CheckpointError(
            f"not a {SCHEMA} document", where=str(path), hint="trtspec build measures the activations again"
        )
    return Activations(*tables)  # type: ignore[arg-type]


def _is_table(table: Any) -> bool:
    return isinstance(table, dict) and all(
        type(value) in (int, float) and math.isfinite(value) and value >= 0 for value in table.values()
    )
