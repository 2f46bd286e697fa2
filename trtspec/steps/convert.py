# SPDX-License-Identifier: Apache-2.0
"""The step that turns a Hugging Face checkpoint into a TensorRT-LLM checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from trtspec.checkpoint.rules import match
from trtspec.checkpoint.source import load_source
from trtspec.checkpoint.trtllm import write_checkpoint
from trtspec.families.base import family_of
from trtspec.graph.step import Inputs, Progress, Step
from trtspec.steps.files import Files


@dataclass(frozen=True)
class ConvertCheckpoint(Step):
    """Stream the source's tensors into `config.json` and `rank0.safetensors`, a few chunks in memory at a time.

    `role` is "target" or "draft", `source` the content of config.json and the shards, `dtype` what the weights become.
    """

    VERSION: ClassVar[int] = 1

    role: str
    source: Files
    dtype: str
    nbytes: int = field(metadata={"key": False})

    @property
    def name(self) -> str:
        """Return `convert-target` or `convert-draft`."""
        return f"convert-{self.role}"

    @property
    def total_bytes(self) -> int:
        """Return the bytes of the source's tensors."""
        return self.nbytes

    def run(self, out: Path, inputs: Inputs, progress: Progress) -> None:
        """Convert; raises CheckpointError where the source does not add up."""
        with self.source.unchanged():
            source = load_source(self.source.root)
            _, family = family_of(source)
            config = family.read(source.reader, self.dtype)
            rules = family.rules(config)
            write_checkpoint(out, config, rules, match(rules, family.skips(config), source), progress.advance)
