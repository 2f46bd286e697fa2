# SPDX-License-Identifier: Apache-2.0
"""What lies in a directory: a source checkpoint, a converted one, or an artifact. Reads headers and documents only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trtspec.artifacts.manifest import load_manifest
from trtspec.artifacts.paths import MANIFEST
from trtspec.checkpoint.safetensors import bytes_by_dtype
from trtspec.checkpoint.sharding import ParallelMapping
from trtspec.checkpoint.trtllm import TrtllmQuantization, is_converted, load_checkpoint
from trtspec.errors import CheckpointError
from trtspec.models.source_model import load_model
from trtspec.quant.conversion import plan_conversion
from trtspec.quant.scheme import Scheme

ONE_RANK, UNQUANTIZED = ParallelMapping(), Scheme()


def inspect_path(path: Path, mapping: ParallelMapping = ONE_RANK, scheme: Scheme = UNQUANTIZED) -> dict[str, Any]:
    """Return a document about what lies at `path`; raises TrtspecError where it is nothing of ours to read.

    `mapping` and `scheme` say how a source would be converted; they change nothing about the rest.
    """
    if not path.is_dir():
        what = "is a file, not a directory" if path.exists() else "no such directory"
        raise CheckpointError(what, where=str(path), hint="name the directory of a checkpoint or of an artifact")
    if (path / MANIFEST).is_file():
        return _artifact(path)
    return _converted(path) if is_converted(path) else _source(path, mapping, scheme)


def _source(path: Path, mapping: ParallelMapping, scheme: Scheme) -> dict[str, Any]:
    model = load_model(path, "auto")
    source, config = model.source, model.config
    model.check(scheme, mapping)
    plan = plan_conversion(config, model.rules, mapping, model.scheme(scheme))
    return {
        "kind": "source checkpoint",
        "family": model.family,
        "architecture": config.architecture,
        "parameters": config.num_parameters,
        "dtypes": bytes_by_dtype(source.tensors.values()),
        "bytes": source.nbytes,
        "files": [file.name for file in source.weight_files],
        "quantization": model.prequantized.describe() if model.prequantized else "none",
        "skipped": model.matched.skipped,
        "converts_to": {
            "dtype": config.dtype,
            "quantization": _words(plan.quantization),
            "bytes_by_rank": [layout.nbytes - len(layout.header) for layout in plan.layouts()],
        },
    }


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
        "quantization": _words(checkpoint.quantization),
    }


def _words(quantization: TrtllmQuantization) -> str:
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
        "files": len(manifest.files),
        "bytes": sum(file.size for file in manifest.files),
        "tools": manifest.tools,
        "steps": [f"{step.name} {step.key[:12]}" for step in manifest.steps],
    }
