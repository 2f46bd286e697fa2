# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import pytest

from tests._support.tiny import PAIR_VOCAB
from tests.conftest import Run
from trtspec.checkpoints.quant_scheme import Scheme
from trtspec.checkpoints.sharding import ParallelMapping
from trtspec.core.errors import TrtspecError
from trtspec.planning.inspection import inspect_path
from trtspec.store.artifact import load_manifest

# embeddings and output, four layers of attention, MLP and two norms, the last norm
PARAMETERS = 2 * PAIR_VOCAB * 64 + 4 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128 + 2 * 64) + 64


def test_inspect_of_a_source_checkpoint_has_every_field(recipe: Path) -> None:
    assert inspect_path(recipe.parent / "target") == {
        "kind": "source checkpoint",
        "family": "llama",
        "architecture": "LlamaForCausalLM",
        "parameters": PARAMETERS,
        "dtypes": {"BF16": 2 * PARAMETERS},
        "bytes": 2 * PARAMETERS,
        "files": ["model.safetensors"],
        "ignored_files": [],
        "lm_head": "lm_head.weight",
        "quantization": "none",
        "skipped": {},
        "converts_to": {"dtype": "bfloat16", "quantization": "none", "bytes_by_rank": [2 * PARAMETERS]},
        "end_ids": "0 (generation_config.json)",
    }


def test_inspect_reports_the_bytes_of_each_rank(recipe: Path) -> None:
    whole = inspect_path(recipe.parent / "target")["converts_to"]["bytes_by_rank"][0]
    four = inspect_path(recipe.parent / "target", ParallelMapping(2, 2))["converts_to"]["bytes_by_rank"]
    norms = 2 * (4 * 2 * 64 + 64)
    assert sum(four) == whole + norms  # every rank stores the norms of its stage
    fp8 = inspect_path(recipe.parent / "target", ParallelMapping(), Scheme("fp8", "fp8"))["converts_to"]
    linear = 4 * (2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 128)
    scales = 4 * 4 * (5 * 2 + 3)
    assert fp8 == {"dtype": "bfloat16", "quantization": "FP8, FP8 KV cache", "bytes_by_rank": [whole - linear + scales]}


def test_impossible_tensor_parallelism_is_an_error(recipe: Path) -> None:
    with pytest.raises(TrtspecError, match="4 attention heads cannot be divided by 3 ranks; 128 MLP columns cannot be"):
        inspect_path(recipe.parent / "target", ParallelMapping(3))


def test_inspect_of_a_converted_checkpoint_has_every_field(artifact: Path) -> None:
    assert inspect_path(artifact / "checkpoints" / "target") == {
        "kind": "TensorRT-LLM checkpoint",
        "architecture": "LlamaForCausalLM",
        "parameters": PARAMETERS,
        "dtypes": {"BF16": 2 * PARAMETERS},
        "tensor_parallel": 1,
        "pipeline_parallel": 1,
        "bytes_by_rank": [2 * PARAMETERS],
        "quantization": "none",
    }


@pytest.mark.slow
def test_inspect_of_an_artifact_matches_its_manifest(artifact: Path) -> None:
    manifest, document = load_manifest(artifact), inspect_path(artifact)
    assert document["kind"] == "artifact"
    assert (document["name"], document["method"], document["draft_len"]) == ("tiny", "draft_target", 3)
    assert document["files"] == len(manifest.files)
    assert document["bytes"] == sum((artifact / record.path).stat().st_size for record in manifest.files)
    assert document["steps"][0] == f"convert-target {manifest.steps[0].key[:12]}"


def test_inspect_prints_one_field_per_line(recipe: Path, trtspec: Run) -> None:
    shown = trtspec("inspect", recipe.parent / "target")
    assert shown.err == ""
    lines = dict(line.split(maxsplit=1) for line in shown.out.splitlines() if line.strip())
    assert lines["kind"].strip() == "source checkpoint"
    assert lines["parameters"].strip() == f"{PARAMETERS:,}"
    assert lines["dtypes"].strip() == f"BF16 {2 * PARAMETERS:,}"
    assert lines["skipped"].strip() == "none"


def test_path_without_a_checkpoint_is_an_error(workplace: Path) -> None:
    (workplace / "file").write_text("")
    (workplace / "empty").mkdir()
    for name, message in (
        ("nosuch", "no such directory"),
        ("file", "is a file, not a directory"),
        ("empty", "config.json: cannot be read"),
    ):
        with pytest.raises(TrtspecError, match=message):
            inspect_path(workplace / name)
