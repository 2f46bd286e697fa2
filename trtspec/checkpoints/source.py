# SPDX-License-Identifier: Apache-2.0
"""A Hugging Face checkpoint directory: config, tensor headers and tokenizer files, without the weights."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from shlex import quote
from typing import Any

from trtspec.checkpoints.model_config import ConfigReader
from trtspec.checkpoints.safe_json import inside, parse_object, repr_short
from trtspec.checkpoints.safetensors import DAMAGED, UNREADABLE, TensorInfo, bytes_by_dtype, read_header
from trtspec.core.errors import CheckpointError
from trtspec.core.files import AbsentFile, describe_read_error, read_bounded
from trtspec.core.paths import hub_cache_dir
from trtspec.core.registry import did_you_mean

MAX_CONFIG_BYTES = 1 << 20
MAX_INDEX_BYTES = 32 << 20
MAX_TOKENIZER_BYTES = 64 << 20
MAX_JSON_VALUES = 300_000
MAX_TENSORS = 150_000
MAX_SHARDS = 10_000
SHARD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,200}\.safetensors")
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
ADAPTER = "adapter_config.json"
PICKLE_INDEX = "pytorch_model.bin.index.json"
QUANTIZATION = "hf_quant_config.json"
IS_DIRECTORY = "a checkpoint is a directory with config.json and *.safetensors"
MAX_SIBLINGS = 1000  # directories whose names are compared with a missing one
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json",
                   "added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja",
                   "generation_config.json")  # fmt: skip


class NotPreparedError(CheckpointError):
    """Raised for a source that is not available locally, but that `trtspec build` downloads or converts."""


@dataclass(frozen=True)
class Source:
    """A checkpoint directory; `tensors` maps names to headers over all shards.

    `quantization` is the content of ModelOpt's hf_quant_config.json, or empty. In a preview of a hub model, `absent`
    has the files that are not available locally.
    """

    root: Path
    config: dict[str, Any]
    tensors: dict[str, TensorInfo]
    quantization: dict[str, Any] = field(default_factory=dict)
    absent: dict[str, AbsentFile] = field(default_factory=dict)

    @cached_property
    def weight_files(self) -> list[Path]:
        return sorted({tensor.file for tensor in self.tensors.values()})

    @cached_property
    def ignored_files(self) -> list[str]:
        """Return the names of the *.safetensors files that are not part of the checkpoint, as in transformers."""
        used = {path.name for path in self.weight_files}
        return sorted(
            path.name for path in islice(self.root.glob("*.safetensors"), MAX_SHARDS) if path.name not in used
        )

    @cached_property
    def tokenizer_files(self) -> list[Path]:
        return sorted(path for path in (self.root / name for name in TOKENIZER_FILES) if path.is_file())

    @property
    def documents(self) -> list[Path]:
        quantization = self.root / QUANTIZATION
        return [self.root / "config.json", *([quantization] if quantization.is_file() else [])]

    @property
    def files(self) -> list[Path]:
        """Return every file that affects builds from this source."""
        return [*self.documents, *self.tokenizer_files, *self.weight_files]

    @property
    def reader(self) -> ConfigReader:
        return ConfigReader(self.config, str(self.root / "config.json"))

    @cached_property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())

    @property
    def main_dtype(self) -> str:
        """Return the dtype of most of the tensors' bytes, e.g. "F32"; "" without tensors."""
        counted = bytes_by_dtype(self.tensors.values())
        return max(counted, key=lambda dtype: counted[dtype], default="")

    @property
    def quantization_reader(self) -> ConfigReader:
        return ConfigReader(self.quantization, str(self.root / QUANTIZATION))


def locate_model(model: str, revision: str | None) -> Path:
    """Return the directory of a recipe's `model`: the local path, or the hub cache's snapshot of the commit.

    Raises CheckpointError if the directory is missing, and NotPreparedError if the snapshot is not downloaded.
    """
    if not revision:
        root = Path(model)
        if not root.is_dir():
            what = "is a file, not a directory" if root.exists() else "no such directory"
            raise CheckpointError(f"{what}: {model}", hint=_nearest_directory(root) or IS_DIRECTORY)
        return root
    root = snapshot_dir(model, revision)
    if not root.is_dir():
        raise NotPreparedError(
            f"{model} at commit {revision} is not in the hub cache",
            where=str(hub_cache_dir()),
            hint="trtspec build downloads it",
        )
    return root


def _nearest_directory(root: Path) -> str | None:
    """Return a hint with the most similar name among the directories next to a missing one, or None."""
    try:
        beside = [each.name for each in islice(os.scandir(root.parent), MAX_SIBLINGS) if each.is_dir()]
    except OSError:
        return None
    near = did_you_mean(root.name, beside)
    return near and f"{near.removesuffix('?')} in {root.parent}?"


def snapshot_dir(model: str, revision: str) -> Path:
    """Return the hub cache's directory of a commit, which need not exist."""
    return hub_cache_dir() / f"models--{model.replace('/', '--')}" / "snapshots" / revision


def load_source(root: Path) -> Source:
    """Load config.json and all tensor headers in `root`.

    Raises CheckpointError for files that are missing, unreadable, inconsistent, or links to places outside `root`.
    """
    config, quantization = load_documents(root)
    _check_tokenizer_files(root)
    index, single = inside(root, INDEX), inside(root, WEIGHTS)
    if index.exists():
        return Source(root, config, _read_indexed(root, index), quantization)
    # as in transformers: other files next to this one are adapters, or copies in another format or dtype
    names = [single] if single.exists() else islice(root.glob("*.safetensors"), MAX_SHARDS + 1)
    shards = sorted(path.name for path in names)
    if not shards:
        pickled = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in root.glob(pattern))
        hint = _pickle_hint(root / pickled[0]) if pickled else "name the directory with the model's weights"
        raise CheckpointError("no *.safetensors file", where=str(root), hint=hint)
    return Source(root, config, _read_shards(root, shards), quantization)


def load_documents(root: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the contents of config.json and of hf_quant_config.json; {} for a missing hf_quant_config.json."""
    config, path = read_json(inside(root, "config.json"), MAX_CONFIG_BYTES), inside(root, QUANTIZATION)
    return config, read_json(path, MAX_CONFIG_BYTES) if path.exists() else {}


def _pickle_hint(path: Path) -> str:
    return (
        f"{path.name} is a pickle, and pickles are not opened; convert it to safetensors, or allow it in the recipe:"
        f" allow_pickle: true and sha256: {{{path.name}: <64 hex digits>}}, as printed by: sha256sum {quote(str(path))}"
    )


def read_weight_map(index: Path) -> dict[str, str]:
    """Return the shard's file name for each tensor of an index; raise CheckpointError if the index is invalid."""
    weight_map = read_json(index, MAX_INDEX_BYTES).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise CheckpointError("its weight_map does not map tensor names to files", where=str(index), hint=DAMAGED)
    return weight_map


def read_json(path: Path, max_bytes: int) -> dict[str, Any]:
    """Return the JSON object in `path`, of at most `max_bytes`; raise CheckpointError if it cannot be read."""
    try:
        return parse_object(read_bounded(path, max_bytes), MAX_JSON_VALUES)
    except OSError as error:
        raise CheckpointError(describe_read_error(error), where=str(path), hint=_unreadable_hint(path, error)) from None
    except ValueError as error:
        raise CheckpointError(
            str(error), where=str(path), hint=f"{path.name} must be a JSON object; save it again"
        ) from None


def read_document(path: Path, max_bytes: int = MAX_CONFIG_BYTES) -> dict[str, Any]:
    """Return the JSON object in `path`, or {} if the file is missing; raise CheckpointError as `read_json` does."""
    return read_json(path, max_bytes) if path.is_file() else {}


def _unreadable_hint(path: Path, error: OSError) -> str | None:
    if not isinstance(error, FileNotFoundError):
        return UNREADABLE
    if (path.parent / ADAPTER).is_file():
        return "this is a LoRA adapter: merge it into its base model and name the merged checkpoint"
    return f"name a directory with {path.name}"


def _check_tokenizer_files(root: Path) -> None:
    for path in (inside(root, name) for name in TOKENIZER_FILES):
        if path.is_file() and path.stat().st_size > MAX_TOKENIZER_BYTES:
            raise CheckpointError(
                f"larger than {MAX_TOKENIZER_BYTES:,} bytes",
                where=str(path),
                hint="name a checkpoint with a smaller tokenizer",
            )


def _read_indexed(root: Path, index: Path) -> dict[str, TensorInfo]:
    weight_map = read_weight_map(index)
    shards = sorted(set(weight_map.values()))
    for shard in shards:
        if not SHARD.fullmatch(shard):
            message = f"shard {repr_short(shard)} is not the name of a .safetensors file in this directory"
            raise CheckpointError(message, where=str(index), hint="the index must contain file names of this directory")
        if not (root / shard).exists():
            message = f"names the shard {shard}, which is missing"
            raise CheckpointError(
                message, where=str(index), hint="download or save the checkpoint again, with all files"
            )
    if WEIGHTS not in shards and (root / WEIGHTS).exists():
        message = f"names other files, but {WEIGHTS} exists too: transformers reads only {WEIGHTS}, other engines read"
        raise CheckpointError(
            f"{message} the files of the index", where=str(index), hint="remove the weights that should not be used"
        )
    tensors = _read_shards(root, shards)
    hint = "the index does not match the files: download or save the checkpoint again"
    for name, shard in weight_map.items():
        if name not in tensors or tensors[name].file.name != shard:
            raise CheckpointError(
                f"maps {repr_short(name)} to {shard}, which does not contain it", where=str(index), hint=hint
            )
    for name in tensors:
        if name not in weight_map:
            message = f"lacks {repr_short(name)}, which {tensors[name].file.name} contains"
            raise CheckpointError(message, where=str(index), hint=hint)
    return tensors


def _read_shards(root: Path, shards: list[str]) -> dict[str, TensorInfo]:
    if len(shards) > MAX_SHARDS:
        raise CheckpointError(f"more than {MAX_SHARDS:,} shards", where=str(root), hint="save it in fewer files")
    tensors: dict[str, TensorInfo] = {}
    for shard in shards:
        path = inside(root, shard)
        header = read_header(path)
        if twice := header.keys() & tensors.keys():
            name = min(twice)
            message = f"tensor {repr_short(name)} is also in {tensors[name].file.name}"
            hint = f"remove the file that should not be used; if {WEIGHTS} or an index exists, other files are ignored"
            raise CheckpointError(message, where=str(path), hint=hint)
        tensors |= header
        if len(tensors) > MAX_TENSORS:
            message = f"more than {MAX_TENSORS:,} tensors up to here"
            raise CheckpointError(
                message, where=str(path), hint="no supported model has so many; name another checkpoint"
            )
    return tensors
