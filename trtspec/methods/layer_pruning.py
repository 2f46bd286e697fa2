# SPDX-License-Identifier: Apache-2.0
"""Sets of sublayers that a target skips while drafting, and checkpoints without them to use as draft models.

Engines do not support layers with only one sublayer. Instead, the output projection of a pruned attention block or MLP
is set to zero, so that the block adds nothing. A layer with both sublayers pruned is removed, and later layers are
renumbered. Only removed layers make a draft model cheaper.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import Field

from trtspec.checkpoints.source_model import SourceModel
from trtspec.checkpoints.trtllm import LAYER_KINDS
from trtspec.checkpoints.writer import OnBytes, Part, ignore_progress, new_directory, write_config, write_tensors
from trtspec.core.errors import CheckpointError
from trtspec.recipe.schema import StrictModel

KINDS = ("attention", "mlp")
OUTPUT_OF = {"attention": "attention.dense", "mlp": "mlp.proj"}


class Skip(StrictModel):
    """Layers, numbered from 0, whose attention or MLP is skipped."""

    attention: list[int] = Field(default=[], description="Layers whose attention is skipped while drafting")
    mlp: list[int] = Field(default=[], description="Layers whose MLP is skipped while drafting")

    @property
    def layers(self) -> list[int]:
        """Return the layers whose attention and MLP are both skipped."""
        return sorted(set(self.attention) & set(self.mlp))

    @property
    def sublayers(self) -> frozenset[tuple[str, int]]:
        """Return the skipped sublayers as pairs (kind, layer)."""
        return frozenset((kind, layer) for kind in KINDS for layer in self.of(kind))

    def of(self, kind: str) -> list[int]:
        """Return the layers whose sublayer of a kind ("attention" or "mlp") is skipped."""
        return self.attention if kind == "attention" else self.mlp


def prune_checkpoint(model: SourceModel, skip: Skip, out: Path, on_bytes: OnBytes = ignore_progress) -> None:
    """Write the model without the skipped sublayers to the new directory `out`, atomically.

    `on_bytes` receives the number of bytes just written. Raise CheckpointError if the source is quantized or `out`
    exists.
    """
    if model.prequantized:
        message = "its weights are quantized; pruning requires unquantized weights"
        raise CheckpointError(message, where=str(model.source.root), hint="use the model before quantization")
    with new_directory(out) as temporary:
        write_tensors(temporary / "model.safetensors", list(_remaining_tensors(model, skip)), on_bytes)
        write_config(temporary, _pruned_config(model, _remaining_layers(model, skip)))
        for path in model.source.tokenizer_files:
            shutil.copyfile(path, temporary / path.name)


def _remaining_layers(model: SourceModel, skip: Skip) -> list[int]:
    """Return the layers with at least one remaining sublayer."""
    return [layer for layer in range(model.config.num_layers) if layer not in skip.layers]


def _remaining_tensors(model: SourceModel, skip: Skip) -> Iterator[Part]:
    """Yield each remaining tensor once, even if two rules use it, as with a tied LM head."""
    numbers = {old: new for new, old in enumerate(_remaining_layers(model, skip))}
    empty = {(layer, OUTPUT_OF[kind]) for kind in KINDS for layer in skip.of(kind)}
    seen = set()
    for rule in model.rules:
        for source in rule.sources:
            name = source.name
            if name in seen or (isinstance(rule.at, int) and rule.at not in numbers):
                continue
            seen.add(name)
            if isinstance(rule.at, int):
                name = name.replace(f".layers.{rule.at}.", f".layers.{numbers[rule.at]}.", 1)
            is_zero = (rule.at, rule.target.rpartition(".")[0]) in empty
            part = Part.copy(name, model.source.tensors[source.name])
            yield replace(part, data=None) if is_zero else part


def _pruned_config(model: SourceModel, layers: list[int]) -> dict[str, Any]:
    """Return config.json for the remaining layers; it lists each layer's kind if some have a sliding window."""
    pruned = model.source.config | {"num_hidden_layers": len(layers)}
    if model.config.full_layers or isinstance(pruned.get("layer_types"), list):
        pruned["layer_types"] = [LAYER_KINDS[model.config.has_window(layer)] for layer in layers]
    if model.ties.differ:  # the file has a separate LM head, which is written
        pruned["tie_word_embeddings"] = False
    return pruned
