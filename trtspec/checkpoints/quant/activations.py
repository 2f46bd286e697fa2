# SPDX-License-Identifier: Apache-2.0
"""What calibration measures: the largest magnitudes that went into linear layers and into the KV cache."""

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
    """Largest magnitudes by module name, as transformer.layers.0.attention.qkv for what goes into it.

    `keys` (after rotation) and `values` are what the attention of transformer.layers.0.attention puts into its cache.
    """

    inputs: dict[str, float] = field(default_factory=dict)
    keys: dict[str, float] = field(default_factory=dict)
    values: dict[str, float] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Write the document; the numbers are float32 and come back as they were."""
        document = {"schema": SCHEMA, "inputs": self.inputs, "keys": self.keys, "values": self.values}
        path.write_text(json.dumps(document, indent=1) + "\n")


def load_activations(path: Path) -> Activations:
    """Return what was saved at `path`; raises CheckpointError where it is no such document."""
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
