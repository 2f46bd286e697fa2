# SPDX-License-Identifier: Apache-2.0
"""A Hugging Face checkpoint as it lies in a directory: config, tensor headers, tokenizer files. Loads no weight."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from trtspec.checkpoint.model_config import ConfigReader
from trtspec.checkpoint.safetensors import TensorInfo, read_header
from trtspec.errors import CheckpointError
from trtspec.paths import hub_cache_dir

MAX_CONFIG_BYTES = 1 << 20
MAX_INDEX_BYTES = 64 << 20
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json",
                   "added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja",
                   "generation_config.json")  # fmt: skip


@dataclass(frozen=True)
class Source:
    """One checkpoint directory; `tensors` maps names to headers over all shards."""

    root: Path
    config: dict[str, Any]
    tensors: dict[str, TensorInfo]

    @cached_property
    def weight_files(self) -> list[Path]:
        """Return the shards, sorted."""
        return sorted({tensor.file for tensor in self.tensors.values()})

    @cached_property
    def tokenizer_files(self) -> list[Path]:
        """Return the tokenizer's files that are there, sorted."""
        return sorted(path for path in (self.root / name for name in TOKENIZER_FILES) if path.is_file())

    @property
    def files(self) -> list[Path]:
        """Return every file that decides what is built from this source."""
        return [self.root / "config.json", *self.tokenizer_files, *self.weight_files]

    @property
    def reader(self) -> ConfigReader:
        """Return typed access to config.json."""
        return ConfigReader(self.config, str(self.root / "config.json"))

    @property
    def nbytes(self) -> int:
        """Return the bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


def locate_model(model: str, revision: str | None) -> Path:
    """Return the directory of a recipe's `model`: itself, or the hub cache's snapshot of that commit.

    Raises CheckpointError where the directory is missing or the snapshot was not downloaded yet.
    """
    if revision is None:
        root = Path(model)
        if not root.is_dir():
            what = "is a file, not a directory" if root.exists() else "no such directory"
            raise CheckpointError(
                f"{what}: {model}", hint="a checkpoint is a directory with config.json and *.safetensors"
            )
        return root
    root = hub_cache_dir() / f"models--{model.replace('/', '--')}" / "snapshots" / revision
    if not root.is_dir():
        raise CheckpointError(
            f"{model} at commit {revision} is not in the hub cache",
            where=str(hub_cache_dir()),
            hint=f"download it once: hf download {model} --revision {revision}",
        )
    return root


def load_source(root: Path) -> Source:
    """Read config.json and all tensor headers below `root`.

    Raises CheckpointError for what is missing, unreadable, contradictory or points outside `root`.
    """
    config = read_json(root / "config.json", MAX_CONFIG_BYTES)
    index = root / "model.safetensors.index.json"
    if index.exists():
        return Source(root, config, _read_indexed(root, index))
    shards = sorted(root.glob("*.safetensors"))
    if not shards:
        pickled = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in root.glob(pattern))
        hint = f"{pickled[0]} is a pickle, which is not opened; convert it to safetensors" if pickled else None
        raise CheckpointError("no *.safetensors file", where=str(root), hint=hint)
    return Source(root, config, _merge(read_header(shard) for shard in shards))


def read_json(path: Path, max_bytes: int) -> dict[str, Any]:
    """Return the JSON object in `path`, which may have at most `max_bytes`."""
    try:
        if path.stat().st_size > max_bytes:
            raise CheckpointError(f"larger than {max_bytes:,} bytes", where=str(path))
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"cannot be read: {error.strerror}", where=str(path)) from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"not valid JSON: {error}", where=str(path)) from None
    if not isinstance(value, dict):
        raise CheckpointError("not a JSON object", where=str(path))
    return value


def _read_indexed(root: Path, index: Path) -> dict[str, TensorInfo]:
    weight_map = read_json(index, MAX_INDEX_BYTES).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise CheckpointError("its weight_map does not map tensor names to files", where=str(index))
    shards = sorted(set(weight_map.values()))
    for shard in shards:
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*\.safetensors", shard):
            raise CheckpointError(f"shard {shard!r} is not the name of a .safetensors file beside it", where=str(index))
        if not (root / shard).is_file():
            raise CheckpointError(f"names the shard {shard}, which is missing", where=str(index))
    tensors = _merge(read_header(root / shard) for shard in shards)
    for name, shard in weight_map.items():
        if name not in tensors or tensors[name].file.name != shard:
            raise CheckpointError(f"says {name!r} is in {shard}, where it is not", where=str(index))
    for name in tensors:
        if name not in weight_map:
            raise CheckpointError(f"lacks {name!r}, which {tensors[name].file.name} holds", where=str(index))
    return tensors


def _merge(headers: Iterable[dict[str, TensorInfo]]) -> dict[str, TensorInfo]:
    tensors: dict[str, TensorInfo] = {}
    for header in headers:
        for name, tensor in header.items():
            if name in tensors:
                raise CheckpointError(f"tensor {name!r} is also in {tensors[name].file.name}", where=str(tensor.file))
            tensors[name] = tensor
    return tensors
