# SPDX-License-Identifier: Apache-2.0
"""Every backend rejects a recipe that exceeds its GPU's memory; checkpoints are headers of published shapes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests._support.shapes import make_checkpoint, shapes
from trtspec.backends.base import backends, find_backend
from trtspec.core.diagnostics import Diagnostic
from trtspec.planning.check.recipe import check_recipe
from trtspec.recipe.load import load_recipe

# Backends that run on GPUs; recipes for other backends are checked against this machine.
ON_GPUS = sorted(name for name, backend in backends().items() if not backend.in_process)
Memory = Callable[..., list[Diagnostic]]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a directory with the named published shape."""
    root, known = tmp_path_factory.mktemp("models"), {shape.name: shape for shape in shapes()}

    def model(name: str) -> Path:
        if not (root / name).exists():
            make_checkpoint(known[name], root / name)
        return root / name

    return model


@pytest.fixture
def memory_of(workplace: Path, models: Callable[[str], Path]) -> Memory:
    """Return the memory diagnostics for a model on a backend; keywords are keys of the recipe's engine."""

    def check(backend: str, model: str, *, tensor: int = 1, fraction: float = 0.9, **engine: Any) -> list[Diagnostic]:
        method = "ngram" if "ngram" in find_backend(backend).methods() else "none"
        target: dict[str, Any] = {"model": str(models(model)), "parallel": {"tensor": tensor}}
        engine = {"backend": backend, "max_batch_size": 1, "max_input_len": 512, "max_seq_len": 1024} | engine
        document = {
            "schema": "trtspec.recipe/1",
            "name": "m",
            "target": target,
            "speculation": {"method": method},
            "engine": engine,
            "serving": {"kv_cache_fraction": fraction},
        }
        (workplace / "m.yaml").write_text(yaml.safe_dump(document))
        diagnostics = check_recipe(load_recipe(workplace / "m.yaml")).diagnostics
        return [each for each in diagnostics if each.code == "memory"]

    return check


@pytest.mark.parametrize("backend", ON_GPUS)
def test_weights_larger_than_the_gpu_are_an_error(memory_of: Memory, backend: str) -> None:
    (found,) = memory_of(backend, "llama-3.1-8b-instruct", gpu="t4")
    assert (found.severity, found.path) == ("error", "engine.gpu")
    assert "weights" in found.message
    assert "14.0 GiB" in found.message


@pytest.mark.parametrize("backend", ON_GPUS)
def test_single_sequence_larger_than_the_gpu_is_an_error(memory_of: Memory, backend: str) -> None:
    """131,072 tokens take 16 GiB in 16 bits, in addition to 15 GiB of weights."""
    lengths = {"max_input_len": 130_000, "max_seq_len": 131_072, "max_num_tokens": 2048}
    (found,) = memory_of(backend, "llama-3.1-8b-instruct", gpu="l4", **lengths)
    assert (found.severity, found.path) == ("error", "engine.max_seq_len")


@pytest.mark.parametrize("backend", ON_GPUS)
def test_full_batch_larger_than_the_gpu_is_a_warning(memory_of: Memory, backend: str) -> None:
    """A request that does not fit the KV cache waits; a text takes 1 GiB."""
    lengths = {"max_input_len": 4096, "max_seq_len": 8192, "max_num_tokens": 2048}
    (found,) = memory_of(backend, "llama-3.1-8b-instruct", gpu="rtx5090", max_batch_size=48, **lengths)
    assert (found.severity, found.path) == ("warning", "engine.max_batch_size")
    assert memory_of(backend, "llama-3.1-8b-instruct", gpu="rtx5090", max_batch_size=8, **lengths) == []


@pytest.mark.parametrize("backend", sorted(set(ON_GPUS) - {"edge_llm"}))
def test_weights_that_fit_with_tensor_parallelism_are_accepted(memory_of: Memory, backend: str) -> None:
    (found,) = memory_of(backend, "llama-3.3-70b-instruct", gpu="h100")
    assert found.severity == "error"
    assert memory_of(backend, "llama-3.3-70b-instruct", gpu="h100", tensor=4) == []


def test_vllm_memory_fraction_limits_the_weights(memory_of: Memory) -> None:
    """vLLM uses gpu_memory_utilization of the whole GPU, including weights."""
    assert memory_of("vllm", "llama-3.1-8b-instruct", gpu="l4") == []
    (found,) = memory_of("vllm", "llama-3.1-8b-instruct", gpu="l4", fraction=0.6)
    assert found.severity == "error"
    assert "13.2 GiB are available of 22.0 GiB (serving.kv_cache_fraction 0.6)" in found.message
    assert memory_of("llmapi", "llama-3.1-8b-instruct", gpu="l4", fraction=0.6) == []


def test_sliding_window_layers_cache_only_the_window(memory_of: Memory) -> None:
    """Five of six layers of Gemma 3 cache 1,024 tokens; caching all 131,072 in every layer would take 62 GiB."""
    lengths = {"max_input_len": 130_000, "max_seq_len": 131_072, "max_num_tokens": 2048}
    assert memory_of("vllm", "gemma-3-27b-it", gpu="h100", **lengths) == []


def test_unknown_gpu_has_no_memory_diagnostics(memory_of: Memory) -> None:
    assert memory_of("vllm", "llama-3.3-70b-instruct") == []


def test_exceeded_memory_of_this_machine_is_a_warning(memory_of: Memory) -> None:
    """The torch engine runs on the serving machine, which may differ from this one."""
    (found,) = memory_of("embedded", "llama-3.1-405b-instruct")
    assert found.severity == "warning"
    assert "this machine" in found.message
