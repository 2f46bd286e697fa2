# SPDX-License-Identifier: Apache-2.0
"""From recipes of every method to the repository that serves their engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Run
from trtspec.backends.tensorrt_llm.artifact import EmitEngineRepository
from trtspec.core.paths import recipes_dir
from trtspec.planning.pipeline import Build, plan_build
from trtspec.recipe.load import load_recipe
from trtspec.serving.triton.config import load_config

ON_ENGINES = ("engine.backend=tensorrt_llm", "engine.gpu=h200")


def planned(recipe: str, *overrides: str) -> Build:
    return plan_build(load_recipe(recipes_dir() / f"{recipe}.yaml", (*ON_ENGINES, *overrides)))


def emitted(build: Build, out: Path) -> dict[str, dict[str, str]]:
    """Return the parameters of every model."""
    step = build.artifact.steps["model_repository"]
    assert isinstance(step, EmitEngineRepository)
    step.emit(out)
    configs = {path.parent.name: load_config(path) for path in out.glob("*/config.pbtxt")}
    return {
        name: {key: parameter.string_value for key, parameter in config.parameters.items()}
        for name, config in configs.items()
    }


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRTSPEC_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("recipe", "engine", "bls"),
    [
        ("quickstart-ngram", {}, {"draft_method": "ngram", "greedy_only": "false"}),
        (
            "quickstart-lookahead",
            {
                "decoding_mode": "lookahead",
                "lookahead_window_size": "4",
                "lookahead_ngram_size": "3",
                "lookahead_verification_set_size": "4",
            },
            {"draft_method": "none", "greedy_only": "true"},
        ),
        ("quickstart-medusa", {"decoding_mode": "medusa"}, {"draft_method": "none", "greedy_only": "true"}),
        ("quickstart-eagle", {"decoding_mode": "eagle"}, {"draft_method": "none", "greedy_only": "true"}),
        ("quickstart-redrafter", {"decoding_mode": "redrafter"}, {"draft_method": "none"}),
    ],
)
def test_single_engine_recipe_emits_its_models_and_parameters(
    tmp_path: Path, recipe: str, engine: dict[str, str], bls: dict[str, str]
) -> None:
    build = planned(recipe)
    assert [name for name in build.artifact.steps if name.startswith("engines/")] == ["engines/target"]
    models = emitted(build, tmp_path / "models")
    assert set(models) == {"ensemble", "preprocessing", "postprocessing", "tensorrt_llm", "tensorrt_llm_bls"}
    told = models["tensorrt_llm"]
    modes = {key: told.get(key) for key in ("decoding_mode", *engine)}
    assert modes == {"decoding_mode": None, **engine}
    assert {key: models["tensorrt_llm_bls"][key] for key in bls} == bls
    if method := engine.get("decoding_mode"):
        paths: Any = getattr(build.context.options, "paths", ())
        tree = ",".join("{" + ",".join(map(str, path)) + "}" for path in paths)
        assert told.get(f"{method}_choices", "") == tree
        assert bool(tree) == (method in ("medusa", "eagle"))
    assert build.artifact.facts["placement"]["mode"] == "leader"


def test_draft_target_recipe_emits_two_engine_models(tmp_path: Path) -> None:
    build = planned("quickstart")
    models = emitted(build, tmp_path / "models")
    assert set(models) == {
        *("ensemble", "preprocessing", "postprocessing", "tensorrt_llm", "tensorrt_llm_draft", "tensorrt_llm_bls")
    }
    target, draft = models["tensorrt_llm"], models["tensorrt_llm_draft"]
    assert (target["gpt_model_path"], draft["gpt_model_path"]) == ("../../engines/target", "../../engines/draft")
    assert target["gpu_device_ids"] == draft["gpu_device_ids"] == "0"
    # both caches have the same limit, because they share the GPU
    assert target["max_tokens_in_paged_kv_cache"] == draft["max_tokens_in_paged_kv_cache"]
    assert "participant_ids" not in target
    bls = models["tensorrt_llm_bls"]
    assert (bls["draft_method"], bls["draft_len"]) == ("draft_target", "5")
    assert bls["vocab_size"] == str(build.context.target.config.vocab_size)  # type: ignore[union-attr]


def test_fast_logits_on_separate_gpus_assign_participant_ids(tmp_path: Path) -> None:
    build = planned("quickstart", "serving.fast_logits=true", "serving.placement={target: [1], draft: [0]}")
    models = emitted(build, tmp_path / "models")
    assert models["tensorrt_llm"]["participant_ids"] == "2"
    assert models["tensorrt_llm_draft"]["participant_ids"] == "1"
    assert "max_tokens_in_paged_kv_cache" not in models["tensorrt_llm"]
    assert build.artifact.facts["placement"]["world_size"] == 3
    assert build.artifact.facts["placement"]["environment"]["TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES"] == "0"


def test_tensor_parallel_engine_has_one_gpu_per_mpi_rank(tmp_path: Path) -> None:
    build = planned("quickstart-ngram", "target.parallel.tensor=2")
    assert emitted(build, tmp_path / "models")["tensorrt_llm"]["gpu_device_ids"] == "0,1"
    placement = build.artifact.facts["placement"]
    assert (placement["mode"], placement["world_size"]) == ("leader", 2)
    assert [device.id for device in build.memory()] == ["0", "1"]


def test_plan_prints_the_command_that_serves_several_ranks(trtspec: Run) -> None:
    overrides = ("--set", "engine.backend=tensorrt_llm", "--set", "engine.gpu=h200")
    recipe = recipes_dir() / "quickstart-ngram.yaml"
    out = trtspec("plan", recipe, *overrides, "--set", "target.parallel.tensor=2").out
    (line,) = (each for each in out.splitlines() if each.startswith("launch: "))
    first, second = line.partition(": ")[2].split(" : ")
    assert first.startswith("mpirun --allow-run-as-root -n 1 tritonserver --model-repository=model_repository ")
    assert "--http-port=8000 --grpc-port=8001 --metrics-port=8002" in first
    assert "--load-model=tensorrt_llm " in second
    pair = trtspec("plan", recipes_dir() / "quickstart.yaml", *overrides).out
    assert "\nlaunch: TRTLLM_ORCHESTRATOR=1 TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES=1 mpirun " in pair
