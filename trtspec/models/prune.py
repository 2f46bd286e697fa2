# SPDX-License-Identifier: Apache-2.0
"""A target without some of its sublayers, as a Hugging Face checkpoint that any engine can use as a draft model.

Engines do not support layers with only one sublayer. An attention block or MLP whose output projection is zero adds
nothing to the residual, so it is the identity. A layer without both is removed, and later layers are renumbered; only
removed layers make a draft cheaper. Tensors are copied from file to file in chunks.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from trtspec.checkpoint.safetensors import TensorInfo, lay_out
from trtspec.checkpoint.trtllm import LAYER_KINDS
from trtspec.errors import CheckpointError
from trtspec.methods.swift import KINDS, Skip
from trtspec.models.source_model import SourceModel

CHUNK_BYTES = 1 << 20
OUTPUT_OF = {"attention": "attention.dense", "mlp": "mlp.proj"}

OnBytes = Callable[[int], None]


@dataclass(frozen=True)
class Kept:
    """A tensor of the source under its new name; `is_zero` where only its shape is kept."""

    name: str
    tensor: TensorInfo
    is_zero: bool


def prune_checkpoint(model: SourceModel, skip: Skip, out: Path, on_bytes: OnBytes = lambda count: None) -> None:
    """Write the model without the sublayers to `out`, atomically; `on_bytes` gets the number of bytes just written.

    Raises CheckpointError for a quantized source, and if `out` exists.
    """
    if model.prequantized:
        message = "its weights are quantized already, and a pruned draft is made of unquantized ones"
        raise CheckpointError(message, where=str(model.source.root))
    if out.exists():
        raise CheckpointError("something lies here already", where=str(out), hint="choose another directory")
    temporary = out.with_name(f".{out.name}.tmp-{os.getpid()}")
    try:
        temporary.mkdir(parents=True)
        _write_tensors(temporary / "model.safetensors", list(_kept_tensors(model, skip)), on_bytes)
        config = _pruned_config(model, _kept_layers(model, skip))
        (temporary / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        for path in model.source.tokenizer_files:
            shutil.copyfile(path, temporary / path.name)
        temporary.rename(out)
    except OSError as error:
        raise CheckpointError(f"cannot be written: {error.strerror}", where=str(out)) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _kept_layers(model: SourceModel, skip: Skip) -> list[int]:
    """Return the layers that keep a sublayer."""
    return [layer for layer in range(model.config.num_layers) if layer not in skip.layers]


def _kept_tensors(model: SourceModel, skip: Skip) -> Iterator[Kept]:
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
            yield Kept(name, model.source.tensors[source.name], is_zero)


def _pruned_config(model: SourceModel, layers: list[int]) -> dict[str, Any]:
    """Return config.json with fewer layers; where some have a window it names their kinds one by one."""
    pruned = model.source.config | {"num_hidden_layers": len(layers)}
    if model.config.full_layers or isinstance(pruned.get("layer_types"), list):
        pruned["layer_types"] = [LAYER_KINDS[model.config.has_window(layer)] for layer in layers]
    return pruned


def _write_tensors(path: Path, kept: list[Kept], on_bytes: OnBytes) -> None:
    layout = lay_out((each.name, each.tensor.dtype, each.tensor.shape) for each in kept)
    with path.open("wb") as file:
        file.write(layout.header)
        file.truncate(layout.nbytes)  # unwritten ranges read as zero
        for each in kept:
            if each.is_zero:
                on_bytes(each.tensor.nbytes)
            else:
                file.seek(layout.offsets[each.name])
                _copy(each.tensor, file, on_bytes)
        file.flush()
        os.fsync(file.fileno())


def _copy(tensor: TensorInfo, file: BinaryIO, on_bytes: OnBytes) -> None:
    left = tensor.nbytes
    with tensor.file.open("rb") as source:
        source.seek(tensor.offset)
        while left:
            chunk = source.read(min(left, CHUNK_BYTES))
            if not chunk:
                raise CheckpointError("ends early; it was changed while being read", where=str(tensor.file))
            file.write(chunk)
            left -= len(chunk)
            on_bytes(len(chunk))
