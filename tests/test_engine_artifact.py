# SPDX-License-Identifier: Apache-2.0
"""From a recipe to an artifact with engines, by the commands people use.

What builds here is a stand-in for trtllm-build (tests/doubles): it holds our words and checkpoints against what
upstream takes, and says nothing about engines.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Run
from tests.doubles.fixtures import H200, Installation, trtllm  # noqa: F401  a fixture
from trtspec.backends.base import find_backend
from trtspec.backends.serving import ServingHooks
from trtspec.backends.tensorrt_llm.artifact import check_machine as check_built_for
from trtspec.bench.verify import ensure_gates
from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.core.errors import DeployError
from trtspec.deployment.revision import find_fallback_backend, stage_repository
from trtspec.planning import pipeline
from trtspec.serving.triton.config import load_config
from trtspec.serving.triton.server import ServerPorts, TritonServer
from trtspec.store.artifact import load_artifact, load_manifest
from trtspec.store.executor import Observer, StepResult
from trtspec.store.plan import StepPlan
from trtspec.store.store import Store

pytestmark = pytest.mark.integration


@pytest.fixture
def engine_recipe(recipe: Path) -> Path:
    recipe.write_text(recipe.read_text().replace("engine:\n", "engine:\n  backend: tensorrt_llm\n  gpu: h200\n"))
    return recipe


@pytest.fixture
def built(trtllm: Installation, engine_recipe: Path, trtspec: Run) -> Path:  # noqa: F811
    done = trtspec("build", engine_recipe, "--json")
    assert done.code == 0, done.err
    return engine_recipe.parent / "build" / "tiny"


def test_artifact_has_the_expected_content_and_is_unchanged_by_a_rebuild(
    built: Path, engine_recipe: Path, trtspec: Run
) -> None:
    manifest = load_manifest(built)
    assert manifest.backend.name == "tensorrt_llm"
    assert manifest.tools["tensorrt_llm"] == "1.2.1"
    assert manifest.tools["tensorrt"] == "10.14.1.48"
    assert manifest.gpu == {"name": "h200", "sm": 90, "driver": "590.44.01"}
    assert {path.name for path in built.iterdir()} == {
        *("manifest.json", "reproduce.sh", "launch.json", "checkpoints", "engines", "tokenizer", "prompts"),
        *("model_repository", "attestations"),
    }
    config = json.loads((built / "engines/target/config.json").read_text())
    assert config["build_config"]["max_draft_len"] == 3
    assert config["build_config"]["speculative_decoding_mode"] == 2
    assert json.loads((built / "engines/draft/config.json").read_text())["build_config"]["max_draft_len"] == 0
    models = {path.name for path in (built / "model_repository").iterdir()}
    assert models == {
        *("ensemble", "preprocessing", "postprocessing", "tensorrt_llm", "tensorrt_llm_draft", "tensorrt_llm_bls")
    }
    again = trtspec("build", engine_recipe, "--json").document
    assert again["status"] == "unchanged"
    assert {step["status"] for step in again["steps"]} == {"hit"}


def test_reproduce_script_runs_the_planned_commands(built: Path, engine_recipe: Path, trtspec: Run) -> None:
    plan = trtspec("plan", engine_recipe, "--json").document
    commands = {step["name"]: step["command"] for step in plan["steps"] if step["command"]}
    assert commands["build-target"][:5] == [
        *("trtllm-build", "--checkpoint_dir", "checkpoints/target", "--output_dir", "engines/target")
    ]
    script = (built / "reproduce.sh").read_text()
    for command in commands.values():
        assert " ".join(command) in script
    assert plan["toolchain"]["kind"] == "local"
    assert plan["placement"]["mode"] == "orchestrator"
    engines = built.parent / "again"
    subprocess.run(["sh", built / "reproduce.sh", engines], check=True, capture_output=True, timeout=300)
    for role in ("target", "draft"):
        theirs, ours = (root / "engines" / role / "config.json" for root in (engines, built))
        assert json.loads(theirs.read_text()) == json.loads(ours.read_text())


@pytest.mark.parametrize(
    "changes",
    [
        {"driver": "580.95.05"},
        {"tensorrt": "10.14.2.1"},
    ],
)
def test_other_machine_rebuilds_engines_but_not_checkpoints(
    built: Path,
    engine_recipe: Path,
    trtspec: Run,
    trtllm: Installation,  # noqa: F811
    changes: dict[str, str],
) -> None:
    trtllm.install(tensorrt=changes.get("tensorrt"))
    trtllm.show_gpus(H200.replace("590.44.01", changes.get("driver", "590.44.01")))
    statuses = {step["name"]: step["status"] for step in trtspec("plan", engine_recipe, "--json").document["steps"]}
    assert {name for name, status in statuses.items() if status == "miss"} == {
        *("build-target", "build-draft", "describe-engines")
    }


def test_missing_toolchain_is_noted_in_the_plan_and_nothing_is_converted(engine_recipe: Path, trtspec: Run) -> None:
    plan = trtspec("plan", engine_recipe, "--json").document
    assert plan["toolchain"]["kind"] == "absent"
    assert plan["toolchain"]["missing"] == "trtllm-build is not on PATH"
    (note,) = plan["notes"]
    assert note.startswith("this machine cannot build the engines (trtllm-build is not on PATH)")
    failed = trtspec("build", engine_recipe, "--json")
    assert failed.code == 1
    assert "cannot build engines: trtllm-build is not on PATH" in failed.err
    assert "pip install tensorrt-llm==1.2.1" in failed.err
    assert not (engine_recipe.parent / "build").exists()
    statuses = {step["name"]: step["status"] for step in trtspec("plan", engine_recipe, "--json").document["steps"]}
    assert statuses["convert-target"] == "miss"


def test_failed_build_shows_the_tool_output_and_publishes_nothing(
    engine_recipe: Path,
    trtspec: Run,
    trtllm: Installation,  # noqa: F811
) -> None:
    trtllm.trouble("exit 3")
    failed = trtspec("build", engine_recipe, "--json")
    assert failed.code == 100
    assert "Error Code 2: OutOfMemory" in failed.err
    assert "status 3" in failed.err
    assert not (engine_recipe.parent / "build").exists()


def server(tmp_path: Path, *backends: str) -> TritonServer:
    for name in backends:
        (tmp_path / "backends" / name).mkdir(parents=True)
    (tmp_path / "bin").mkdir(parents=True, exist_ok=True)
    return TritonServer(tmp_path / "bin" / "tritonserver", "PATH")


def serving_of(artifact: Path) -> ServingHooks:
    return find_backend(load_manifest(artifact).backend.name).serving()


def check_machine(artifact: Path, server: TritonServer) -> None:
    """Check what `deploy` checks before it starts a server."""
    serving = serving_of(artifact)
    find_fallback_backend(server, serving)
    serving.check_machine(artifact, load_manifest(artifact))


def refusal(built: Path, server: TritonServer) -> str:
    with pytest.raises(DeployError) as caught:
        check_machine(built, server)
    return caught.value.message


def test_deploy_accepts_the_machine_that_built_the_engines(built: Path, tmp_path: Path) -> None:
    check_machine(built, server(tmp_path / "triton", "tensorrtllm"))


def test_deploy_rejects_a_server_without_the_backend(built: Path, tmp_path: Path) -> None:
    assert refusal(built, server(tmp_path / "triton")) == "this tritonserver lacks the tensorrtllm backend"


def test_release_candidate_matches_engines_of_its_release(built: Path, trtllm: Installation) -> None:  # noqa: F811
    """An image is known by its release, and what runs in it says another word."""
    trtllm.install("1.2.1rc2")
    check_built_for(built, load_manifest(built))
    trtllm.install("1.1.0", tensorrt="10.14.1.48")
    with pytest.raises(DeployError, match=r"tensorrt_llm 1\.2\.1 when built, 1\.1\.0 here"):
        check_built_for(built, load_manifest(built))


@pytest.mark.parametrize(
    ("gpu", "tensorrt", "said"),
    [
        (H200.replace("590.44.01", "580.95.05"), None, "driver 590.44.01 when built, 580.95.05 here"),
        ("NVIDIA H100 80GB HBM3, 9.0, 590.44.01, 81559", None, "name h200 when built, NVIDIA H100 80GB HBM3 here"),
        ("NVIDIA L40S, 8.9, 590.44.01, 46068", None, "sm 90 when built, 89 here"),
        (H200, "10.14.2.1", "tensorrt 10.14.1.48 when built, 10.14.2.1 here"),
    ],
)
def test_deploy_rejects_another_gpu_driver_or_tensorrt(
    built: Path,
    tmp_path: Path,
    trtllm: Installation,  # noqa: F811
    gpu: str,
    tensorrt: str | None,
    said: str,
) -> None:
    trtllm.install(tensorrt=tensorrt)
    trtllm.show_gpus(gpu)
    refused = refusal(built, server(tmp_path / "triton", "tensorrtllm"))
    assert refused.startswith("the engines were built for another machine: ")
    assert said in refused


def test_deploy_rejects_another_tensorrt_llm_version(
    built: Path,
    tmp_path: Path,
    trtllm: Installation,  # noqa: F811
) -> None:
    trtllm.install("1.1.0")
    assert "tensorrt_llm 1.2.1 when built, 1.1.0 here" in refusal(built, server(tmp_path / "triton", "tensorrtllm"))


PORTS = ServerPorts(8000, 8001, 8002)


def test_launch_of_two_engines_uses_the_orchestrator(built: Path, tmp_path: Path) -> None:
    launch = serving_of(built).launch(built)
    assert launch.environment == {"TRTLLM_ORCHESTRATOR": "1", "TRTLLM_ORCHESTRATOR_SPAWN_PROCESSES": "1"}
    command = launch.command(server(tmp_path), Path("/repository"), PORTS, "prefix_")
    assert command[0].endswith("tritonserver")
    assert "--load-model=*" in command
    assert "--cuda-memory-pool-byte-size=0:0" in command


def test_launch_of_several_ranks_uses_mpirun(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rewrite_launch(built, world_size=2, environment={}, models=[{"name": "tensorrt_llm", "gpu_device_ids": [0, 1]}])
    launch = serving_of(built).launch(built)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DeployError, match="the engines need 2 processes, but mpirun is not on PATH"):
        launch.command(server(tmp_path), Path("/repository"), PORTS, "p_")
    (tmp_path / "mpirun").touch(mode=0o755)
    command = launch.command(server(tmp_path), Path("/repository"), PORTS, "p_")
    assert command[:4] == ["mpirun", "--allow-run-as-root", "-n", "1"]
    second = command[command.index(":") :]
    assert "--load-model=tensorrt_llm" in second
    assert "--backend-config=python,shm-region-prefix-name=p_1_" in second
    assert all("address=127.0.0.1" in word for word in command if "-address=" in word)


def rewrite_launch(built: Path, **changes: Any) -> None:
    path = built / "launch.json"
    document = json.loads(path.read_text()) | changes
    path.unlink()
    path.write_text(json.dumps(document))


@pytest.mark.parametrize(
    "changes",
    [
        {"world_size": 10**6},
        {"world_size": "2; rm -rf /"},
        {"models": [{"name": "../../etc", "gpu_device_ids": [0]}]},
        {"models": []},
        {"environment": {"TRTLLM_ORCHESTRATOR": "$(id)"}},
        {"models": [{"name": "tensorrt_llm", "gpu_device_ids": [10**9]}]},
    ],
)
def test_tampered_launch_file_is_rejected(built: Path, changes: dict[str, Any]) -> None:
    rewrite_launch(built, **changes)
    with pytest.raises(DeployError, match="cannot be read"):
        serving_of(built).launch(built)


def test_staged_repository_has_absolute_paths_and_leaves_artifact_unchanged(built: Path, tmp_path: Path) -> None:
    repository = stage_repository(load_artifact(built), serving_of(built), tmp_path / "stage")
    path = load_config(repository / "tensorrt_llm/config.pbtxt").parameters["gpt_model_path"].string_value
    assert path == str(built / "engines/target")
    bls = load_config(repository / "tensorrt_llm_bls/config.pbtxt").parameters
    assert Tokenizer(Path(bls["tokenizer_dir"].string_value)).end_ids
    own = load_config(built / "model_repository/tensorrt_llm/config.pbtxt").parameters["gpt_model_path"].string_value
    assert own == "../../engines/target"


def test_artifact_checkpoints_are_verified_by_the_embedded_engine(built: Path, trtspec: Run) -> None:
    verified = trtspec("verify", built, "--max-tokens", 8, "--json")
    assert verified.code == 0, verified.err
    assert [check["name"] for check in verified.document["checks"]] == ["files", "parity", "lossless"]


def test_gates_of_engines_are_deferred_to_the_server(built: Path) -> None:
    assert ensure_gates(built) is False


@pytest.mark.parametrize("backend", ["llmapi", "vllm"])
def test_artifact_without_conversion_copies_the_checkpoints(recipe: Path, trtspec: Run, backend: str) -> None:
    recipe.write_text(recipe.read_text().replace("engine:\n", f"engine:\n  backend: {backend}\n  gpu: h100\n"))
    done = trtspec("build", recipe, "--json")
    assert done.code == 0, done.err
    artifact = recipe.parent / "build" / "tiny"
    for role in ("target", "draft"):
        theirs = (recipe.parent / role / "model.safetensors").read_bytes()
        assert (artifact / "checkpoints" / role / "model.safetensors").read_bytes() == theirs
    manifest = load_manifest(artifact)
    assert manifest.backend.name == backend
    assert manifest.gpu == {"name": "h100"}
    refused = trtspec("generate", artifact, "-p", "x")
    assert refused.code == 1
    assert f"{backend} runs in a server, not in this process" in refused.err
    assert ensure_gates(artifact) is False
    assert trtspec("plan", recipe, "--json").document["steps"][0]["status"] == "hit"


def test_deploy_rejects_a_server_without_vllm(recipe: Path, trtspec: Run, tmp_path: Path) -> None:
    recipe.write_text(recipe.read_text().replace("engine:\n", "engine:\n  backend: vllm\n  gpu: h100\n"))
    assert trtspec("build", recipe).code == 0
    artifact = recipe.parent / "build" / "tiny"
    assert refusal(artifact, server(tmp_path / "triton")).startswith(
        "this tritonserver lacks the vllm backend, and its fallback"
    )
    document = json.loads((artifact / "model_repository/vllm_model/1/model.json").read_text())
    assert document["model"] == "../../checkpoints/target"
    staged = stage_repository(load_artifact(artifact), serving_of(artifact), tmp_path / "stage")
    document = json.loads((staged / "vllm_model/1/model.json").read_text())
    assert document["model"] == str(artifact / "checkpoints/target")
    assert document["speculative_config"]["model"] == str(artifact / "checkpoints/draft")


def test_build_uses_the_gpus_of_this_machine(
    engine_recipe: Path,
    trtspec: Run,
    trtllm: Installation,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lent = []
    execute = pipeline.execute

    def noted(plan: StepPlan, store: Store, observer: Observer, devices: Sequence[str]) -> list[StepResult]:
        lent.extend(devices)
        return execute(plan, store, observer, devices)

    monkeypatch.setattr(pipeline, "execute", noted)
    assert trtspec("build", engine_recipe).code == 0
    assert lent == ["0", "1"]
