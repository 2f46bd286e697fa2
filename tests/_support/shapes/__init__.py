# SPDX-License-Identifier: Apache-2.0
"""Published checkpoints without weights: config.json facts, and real safetensors headers over sparse files.

Each *.json of this folder is one checkpoint: where recipes look for it, its layout, its tokenizer's family and the
relevant keys of its config.json. Its tensors are derived from the config with the published layouts (sources in
README.md), not with this project's rules.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from tests._support.shapes.layouts import LAYOUTS, Tensor
from tests._support.shapes.mixed import MIXED

HERE = Path(__file__).parent
SHARD_BYTES = 5_000_000_000  # shard size of transformers and huggingface_hub
ITEM_BYTES = {"BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1, "U8": 1, "I64": 8, "BOOL": 1}
CODES = {"bfloat16": "BF16", "float16": "F16"}


@dataclass(frozen=True)
class Shape:
    """One checkpoint: `model` is a hub id with its commit `revision`, or a directory relative to the recipes.

    `sizes` determine its tensors if its config.json lacks the information.
    """

    name: str
    model: str
    revision: str | None
    layout: str
    tokenizer: str | None
    config: dict[str, Any]
    sizes: dict[str, Any]

    def place(self, recipes: Path, hub: Path) -> Path:
        """Return the checkpoint's path for a recipe directory and a hub cache."""
        if self.revision is None:
            return recipes / self.model
        return hub / f"models--{self.model.replace('/', '--')}" / "snapshots" / self.revision

    def tensors(self) -> list[Tensor]:
        """Return the tensors in file order; tensors without a dtype have the config's."""
        facts = self.config | self.sizes
        own = CODES[facts.get("torch_dtype") or facts["dtype"]]
        return [tensor if tensor.dtype else tensor.of(own) for tensor in (LAYOUTS | MIXED)[self.layout](facts)]


def shapes() -> list[Shape]:
    """Return all checkpoints, by name."""
    found = []
    for path in sorted(HERE.glob("*.json")):
        facts = {"revision": None, "tokenizer": None, "sizes": {}, **json.loads(path.read_text())}
        found.append(Shape(path.stem, **facts))
    return found


def make_checkpoints(recipes: Path, hub: Path) -> None:
    """Create every checkpoint where the recipes in a directory will find it, with this hub cache."""
    for shape in shapes():
        make_checkpoint(shape, shape.place(recipes, hub))


def make_checkpoint(shape: Shape, root: Path) -> None:
    """Write config, headers, a fake tokenizer and its end id to `root`; tensor data takes no disk space."""
    root.mkdir(parents=True)
    (root / "config.json").write_text(json.dumps(shape.config))
    if shape.tokenizer:
        (root / "tokenizer.json").write_text(_stand_in(shape.tokenizer))
        (root / "generation_config.json").write_text('{"eos_token_id": 0}')
    shards = list(_divided(shape.tensors()))
    if len(shards) == 1:
        _write_shard(root / "model.safetensors", shards[0])
        return
    weight_map = {}
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        _write_shard(root / name, shard)
        weight_map |= dict.fromkeys((tensor.name for tensor in shard), name)
    (root / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def _stand_in(family: str) -> str:
    """Return a one-word tokenizer that differs between families."""
    model = {"type": "WordLevel", "vocab": {family: 0}, "unk_token": family}
    return json.dumps({"version": "1.0", "added_tokens": [], "model": model})


def _nbytes(tensor: Tensor) -> int:
    return prod(tensor.shape) * ITEM_BYTES[tensor.dtype]


def _divided(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Yield the tensors of each shard, filled in order."""
    shard: list[Tensor] = []
    size = 0
    for tensor in tensors:
        if shard and size + _nbytes(tensor) > SHARD_BYTES:
            yield shard
            shard, size = [], 0
        shard.append(tensor)
        size += _nbytes(tensor)
    yield shard


def _write_shard(path: Path, tensors: list[Tensor]) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for tensor in tensors:
        end = position + _nbytes(tensor)
        header[tensor.name] = {
            "dtype": tensor.dtype,
            "shape": list(tensor.shape),
            "data_offsets": [position, end],
        }
        position = end
    raw = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        start = file.tell()
        for tensor in tensors:
            if tensor.data:
                file.seek(start + header[tensor.name]["data_offsets"][0])
                file.write(tensor.data)
        file.truncate(start + position)
