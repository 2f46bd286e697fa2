# SPDX-License-Identifier: Apache-2.0
"""Description of a checkpoint or artifact, in a directory or on the hub, from its headers and documents only."""

from __future__ import annotations

import re
from collections.abc import Collection
from math import prod
from pathlib import Path
from typing import Any

from trtspec.checkpoints.conversion import plan_conversion
from trtspec.checkpoints.generation_config import find_end_ids
from trtspec.checkpoints.memory_profile import read_text_config
from trtspec.checkpoints.prequantized import source_format
from trtspec.checkpoints.quant_scheme import Scheme
from trtspec.checkpoints.resolve import choose_commit, find_source, is_hub_id
from trtspec.checkpoints.safetensors import bytes_by_dtype
from trtspec.checkpoints.sharding import ParallelMapping
from trtspec.checkpoints.source import Source, load_source
from trtspec.checkpoints.source_model import SourceModel, read_model
from trtspec.checkpoints.tied_embeddings import find_ties
from trtspec.checkpoints.trtllm import LM_HEAD, TrtllmQuantization, is_converted, load_checkpoint
from trtspec.checkpoints.vocabulary import TOKENIZER, VocabularyFiles
from trtspec.core.errors import CheckpointError, UnsupportedArchitecture
from trtspec.recipe.schema import COMMIT, ModelSource
from trtspec.store.artifact import load_manifest
from trtspec.store.artifact_paths import MANIFEST
from trtspec.store.artifact_paths import TOKENIZER as TOKENIZER_DIR

ONE_RANK, UNQUANTIZED = ParallelMapping(), Scheme()
LONGEST_NAME = 100


def inspect_model(written: str, mapping: ParallelMapping = ONE_RANK, scheme: Scheme = UNQUANTIZED) -> dict[str, Any]:
    """Return a description of a directory or a hub model, given as its id or `ID@COMMIT` (default: newest commit).

    Raises TrtspecError as `inspect_path` does, and if the hub does not provide the model.
    """
    model, _, revision = written.partition("@")
    if "/" not in model or not is_hub_id(model) or Path(written).exists():
        return inspect_path(Path(written), mapping, scheme)
    if revision and not re.fullmatch(COMMIT, revision):
        raise CheckpointError("a commit has 40 hexadecimal digits", where=written, hint="write ID@COMMIT")
    asked = ModelSource(model=model, revision=revision or choose_commit(model).revision)
    source = find_source(asked)
    downloads = sum(each[1] for each in source.absent.values())
    origin = {"model": asked.model, "revision": asked.revision, "download_bytes": downloads}
    return {**_describe(source, mapping, scheme), **origin}


def inspect_path(path: Path, mapping: ParallelMapping = ONE_RANK, scheme: Scheme = UNQUANTIZED) -> dict[str, Any]:
    """Return a description of the checkpoint or artifact in a directory; TrtspecError if it is neither.

    `mapping` and `scheme` define how a source checkpoint would be converted; they do not affect other directories.
    """
    if not path.is_dir():
        what = "is a file, not a directory" if path.exists() else "no such directory"
        raise CheckpointError(what, where=str(path), hint="name the directory of a checkpoint or of an artifact")
    if (path / MANIFEST).is_file():
        return _artifact(path)
    return _converted(path) if is_converted(path) else _describe(load_source(path), mapping, scheme)


def _describe(source: Source, mapping: ParallelMapping, scheme: Scheme) -> dict[str, Any]:
    """Return the description of a source checkpoint; if its family is unknown, only its headers are described."""
    try:
        details = _converting(read_model(source, "auto"), mapping, scheme)
    except UnsupportedArchitecture as unknown:
        details = {"family": "none", "architecture": unknown.architecture[:LONGEST_NAME]}
    ties = find_ties(source, read_text_config(source))
    headers = {
        "kind": "source checkpoint",
        "family": "",
        "architecture": "",
        "parameters": sum(prod(tensor.shape) for tensor in source.tensors.values()),
        "dtypes": bytes_by_dtype(source.tensors.values()),
        "bytes": source.nbytes,
        "files": [file.name for file in source.weight_files],
        "quantization": source_format(source).weights,
        "ignored_files": source.ignored_files,
        "lm_head": f"{ties.head}, or {ties.embedding} by config.json: their values differ" if ties.differ else "",
        "skipped": [],
        "converts_to": {},
        "end_ids": _end_ids(source.root, source.absent),
    }
    return headers | details


def _end_ids(root: Path, absent: Collection[str] = ()) -> str:
    """Return the end-of-text ids and the file that defines them, or the reason why they cannot be read."""
    try:
        is_here = TOKENIZER not in absent and (root / TOKENIZER).is_file()
        return str(find_end_ids(root, VocabularyFiles(root).token_id if is_here else lambda token: None))
    except CheckpointError as error:
        return f"unknown: {error}"


def _converting(model: SourceModel, mapping: ParallelMapping, scheme: Scheme) -> dict[str, Any]:
    """Return the description of a model of a known family and of its converted form."""
    model.check(scheme, mapping)
    plan = plan_conversion(model.config, model.rules, mapping, model.scheme(scheme))
    return {
        "family": model.family,
        "architecture": model.config.architecture,
        "parameters": model.config.num_parameters,
        "quantization": model.prequantized.describe() if model.prequantized else "none",
        "lm_head": _used_head(model),
        "skipped": model.matched.skipped,
        "converts_to": {
            "dtype": model.config.dtype,
            "quantization": _describe_quantization(plan.quantization),
            "bytes_by_rank": [layout.nbytes - len(layout.header) for layout in plan.layouts()],
        },
    }


def _used_head(model: SourceModel) -> str:
    """Return the name of the tensor that becomes the LM head, with the reason if config.json ties embeddings."""
    ((tensor,),) = (rule.sources for rule in model.rules if rule.target == LM_HEAD)
    if model.ties.differ:
        return f"{tensor.name}, from the file: config.json ties it to {model.ties.embedding}, whose values differ"
    return f"{tensor.name}, tied to the embedding" if model.config.tied_embeddings else tensor.name


def _converted(path: Path) -> dict[str, Any]:
    checkpoint = load_checkpoint(path)
    return {
        "kind": "TensorRT-LLM checkpoint",
        "architecture": checkpoint.config.architecture,
        "parameters": checkpoint.config.num_parameters,
        "dtypes": bytes_by_dtype(checkpoint.tensors),
        "tensor_parallel": checkpoint.mapping.tensor,
        "pipeline_parallel": checkpoint.mapping.pipeline,
        "bytes_by_rank": checkpoint.nbytes_by_rank,
        "quantization": _describe_quantization(checkpoint.quantization),
    }


def _describe_quantization(quantization: TrtllmQuantization) -> str:
    parts = [quantization.algo, f"{quantization.kv_cache_algo} KV cache" if quantization.kv_cache_algo else ""]
    return ", ".join(part for part in parts if part) or "none"


def _artifact(path: Path) -> dict[str, Any]:
    manifest = load_manifest(path)
    speculation = manifest.recipe.speculation
    return {
        "kind": "artifact",
        "name": manifest.recipe.name,
        "backend": f"{manifest.backend.name} ({manifest.backend.why})",
        "method": speculation.method,
        "draft_len": speculation.draft_len,
        "acceptance": speculation.acceptance,
        "end_ids": _end_ids(path / TOKENIZER_DIR),
        "files": len(manifest.files),
        "bytes": sum(file.size for file in manifest.files),
        "tools": manifest.tools,
        "steps": [f"{step.name} {step.key[:12]}" for step in manifest.steps],
    }
