# SPDX-License-Identifier: Apache-2.0
"""A target without some of its sublayers, as a Hugging Face checkpoint that any engine can use as a draft model.

Engines do not support layers with only one sublayer. An attention block or MLP whose output projection is zero adds
nothing to the residual, so it is the identity. A layer without both is removed, and later layers are renumbered; only
removed layers make a draft cheaper. Tensors are copied from file to file in chunks.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from trtspec.checkpoints.source_model import SourceModel
from trtspec.checkpoints.trtllm import LAYER_KINDS
from trtspec.checkpoints.writer import OnBytes, Part, ignore, new_directory, write_config, write_tensors
from trtspec.core.errors import CheckpointError
from trtspec.methods.layer_skips import KINDS, Skip

OUTPUT_OF = {"attention": "attention.dense", "mlp": "mlp.proj"}


def prune_checkpoint(model: SourceModel, skip: Skip, out: Path, on_bytes: OnBytes = ignore) -> None:
    """Write the model without the sublayers to `out`, atomically; `on_bytes` gets the number of bytes just written.

    Raises CheckpointError for a quantized source, and if `out` exists.
    """
    if model.prequantized:
        message = "its weights are quantized already, and a pruned draft is made of unquantized ones"
        raise CheckpointError(
            message, where=str(model.source.root), hint="name the model as it was before quantization"
        )
    with new_directory(out) as temporary:
        write_tensors(temporary / "model.safetensors", list(_kept_tensors(model, skip)), on_bytes)
        write_config(temporary, _pruned_config(model, _kept_layers(model, skip)))
        for path in model.source.tokenizer_files:
            shutil.copyfile(path, temporary / path.name)


def _kept_layers(model: SourceModel, skip: Skip) -> list[int]:
    """Return the layers that keep a sublayer."""
    return [layer for layer in range(model.config.num_layers) if layer not in skip.layers]


def _kept_tensors(model: SourceModel, skip: Skip) -> Iterator[Part]:
    """Yield the remaining tensors, each once: a tied LM head is the embedding."""
    numbers = {old: new for new, old in enumerate(_kept_layers(model, skip))}
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
    """Return config.json with fewer layers; where some have a window it names their kinds one by one."""
    pruned = model.source.config | {"num_hidden_layers": len(layers)}
    if model.config.full_layers or isinstance(pruned.get("layer_types"), list):
        pruned["layer_types"] = [LAYER_KINDS[model.config.has_window(layer)] for layer in layers]
    if model.ties.differ:  # the head that is written is the file's own
        pruned["tie_word_embeddings"] = False
    return pruned
