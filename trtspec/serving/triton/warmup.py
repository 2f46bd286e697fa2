# SPDX-License-Identifier: Apache-2.0
"""Requests that Triton itself sends to a model before it is ready (`model_warmup`), their tensors in files beside it.

It sends those of a sample together, one sample after the other. For models whose inputs suffice and whose backend keeps
a request until it is answered: of a sample it waits for the first request to be let go of, and only logs what fails
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

FOLDER = "warmup"  # where Triton looks for the data, in the model's directory
INT32 = 8  # of Triton's DataType


@dataclass(frozen=True)
class Sample:
    """`requests` equal requests, of inputs of int32 with one dimension beside the batch's."""

    name: str
    requests: int
    inputs: Mapping[str, Sequence[int]]

    def file(self, tensor: str) -> str:
        """Return the name of the file that holds an input."""
        return f"{self.name}-{tensor}.int32"


def add_samples(config: ModelConfig, model: Path, samples: Sequence[Sample]) -> None:
    """Add samples to a configuration, and write their data below the model's directory."""
    for sample in samples:
        entry = config.model_warmup.add(name=sample.name, batch_size=sample.requests)
        for tensor, values in sample.inputs.items():
            entry.inputs[tensor].data_type = INT32
            entry.inputs[tensor].dims.append(len(values))
            entry.inputs[tensor].input_data_file = sample.file(tensor)
            path = model / FOLDER / sample.file(tensor)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(struct.pack(f"<{len(values)}i", *values))
