# SPDX-License-Identifier: Apache-2.0
"""The double of vLLM rejects what that version rejects, and accepts what is emitted for it."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.backends.source_contexts import source_context
from tests.serving.triton.fakes import load_file, make_pb_utils
from trtspec.backends.vllm.arguments import model_json
from trtspec.backends.vllm.versions import releases

DOUBLE = Path(__file__).parents[2] / "doubles" / "vllm" / "model.py"
CASES = ("draft_target", "ngram", "eagle", "eagle3")


@pytest.fixture(scope="module")
def double() -> ModuleType:
    return load_file(DOUBLE, make_pb_utils())


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def document(version: str, method: str, net: Path, **changes: Any) -> dict[str, Any]:
    context = source_context("vllm", version, method, **changes)
    return model_json(context, str(net), str(net) if context.recipe.speculation.draft else None)


@pytest.mark.parametrize("version", releases())
def test_double_accepts_the_documents_emitted_for_its_version(version: str, double: ModuleType, tmp_path: Path) -> None:
    for method in CASES:
        double.check_arguments(document(version, method, tmp_path, target__parallel={"tensor": 4}), numbers(version))


@pytest.mark.parametrize(
    ("version", "method", "change", "message"),
    [
        ("0.33.0", "draft_target", {"draft_tensor_parallel_size": 1}, "must be the same"),
        ("0.23.0", "ngram", {"num_speculative_tokens_per_batch_size": [[1, 4, 2]]}, "unexpected keywords"),
        ("0.24.0", "ngram", {"rejection_sample_method": "block"}, "rejection_sample_method has no block"),
        ("0.33.0", "eagle", {"method": "medusa"}, "Unsupported speculative method"),
        ("0.19.0", "eagle", {"method": "dflash"}, "Unsupported speculative method"),
    ],
)
def test_double_rejects_the_arguments_that_its_version_rejects(
    version, method, change, message, double, tmp_path
) -> None:
    emitted = document(version, method, tmp_path, target__parallel={"tensor": 2})
    emitted["speculative_config"] |= change
    with pytest.raises((TypeError, ValueError), match=message):
        double.check_arguments(emitted, numbers(version))


def test_double_fails_for_a_drafter_with_too_few_positions(double: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 1024}))
    emitted = document("0.26.0", "eagle3", tmp_path)
    with pytest.raises(RuntimeError, match="device-side assert"):
        double.check_arguments(emitted, (0, 26, 0))
    double.check_arguments(emitted, (0, 27, 0))


def test_double_rejects_drafting_with_pipeline_parallelism(double: ModuleType, tmp_path: Path) -> None:
    emitted = document("0.32.0", "ngram", tmp_path, target__parallel={"pipeline": 2})
    with pytest.raises(ValueError, match="ngram with pipeline parallel is not supported"):
        double.check_arguments(emitted, (0, 32, 0))
