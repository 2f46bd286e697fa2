# SPDX-License-Identifier: Apache-2.0
"""Warm-up requests (`model_warmup`) that Triton sends to a model before it is ready; their tensors are in files.

Triton sends the requests of a sample together, one sample after the other. It waits only until a sample's first request
is released, and only logs failures, so this suits models whose backend keeps a request until it is answered
(triton-inference-server/core:src/backend_model_instance.cc, WarmUp).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trtspec.serving.triton.config import ModelConfig

FOLDER = "warmup"  # where Triton expects the data, in the model's directory
INT32 = 8  # value in Triton's DataType


@dataclass(frozen=True)
class WarmupSample:
    """`requests` equal requests with int32 inputs of one dimension besides the batch dimension."""

    name: str
    requests: int
    inputs: Mapping[str, Sequence[int]]

    def file(self, tensor: str) -> str:
        """Return the name of the file of an input."""
        return f"{self.name}-{tensor}.int32"


def add_samples(config: ModelConfig, model: Path, samples: Sequence[WarmupSample]) -> None:
    """Add samples to a configuration and write their data below the model's directory."""
    for sample in samples:
        entry = config.model_warmup.add(name=sample.name, batch_size=sample.requests)
        for tensor, values in sample.inputs.items():
            entry.inputs[tensor].data_type = INT32
            entry.inputs[tensor].dims.append(len(values))
            entry.inputs[tensor].input_data_file = sample.file(tensor)
            path = model / FOLDER / sample.file(tensor)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(struct.pack(f"<{len(values)}i", *values))
