# SPDX-License-Identifier: Apache-2.0
"""Builds for Edge-LLM with doubles of its commands: steps, keys, failures, and the contents of the artifact."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.conftest import Run
from trtspec.backends.edge_llm import toolchain
from trtspec.backends.edge_llm.artifact import check_machine
from trtspec.backends.edge_llm.build import PLAIN_TEMPLATE, RunEdgeTool, check_engines
from trtspec.core.errors import DeployError, StepError
from trtspec.core.gpus import DetectedGpu
from trtspec.planning.pipeline import plan_build
from trtspec.recipe.load import load_matrix
from trtspec.store.artifact import load_manifest

# Records its arguments and environment next to itself, and writes the output files of each command.
COMMAND = f"""#!{sys.executable}
import json, os, pathlib, sys
here, argv = pathlib.Path(__file__), sys.argv[1:]
with (here.parent / "ran.jsonl").open("a") as log:
    log.write(json.dumps([here.name, *argv]) + "\\n")
print("the last words of", here.name)
if (here.parent / "fails").exists():
    sys.exit(3)
if here.name.endswith("quantize"):
    source = pathlib.Path(argv[argv.index("--model_dir") + 1])
    out = pathlib.Path(argv[argv.index("--output_dir") + 1])
    rows = pathlib.Path(os.environ["EDGELLM_QUANT_DATASET_WIKITEXT"]).read_text().splitlines()
    config = json.loads((source / "config.json").read_text()) | {{"calibrated_on": len(rows)}}
    (out / "config.json").write_text(json.dumps(config))
elif here.name.endswith("export"):
    out = pathlib.Path(argv[1]) / "llm"
    out.mkdir()
    (out / "model.onnx").write_text((pathlib.Path(argv[0]) / "config.json").read_text())
    if not (here.parent / "forgets").exists():
        (out / "config.json").write_text("{{}}")
else:
    out = pathlib.Path(argv[argv.index("--engine-dir") + 1])
    sizes = {{key: int(argv[argv.index("--" + key.replace("_", "-")) + 1])
             for key in ("max_input_len", "max_kv_cache_capacity", "max_batch_size")}}
    drafts = argv[argv.index("--spec-type") + 1] != "none"
    for name in ("spec_base", "spec_draft") if drafts else ("llm",):
        (out / (name + ".engine")).write_text("engine")
    (out / ("base_config.json" if drafts else "config.json")).write_text(json.dumps({{"builder_config": sizes}}))
"""
FOR_EDGE = ("--set", "engine.backend=edge_llm", "--set", "engine.gpu=rtx5090", "--set", "speculation.method=none")


@pytest.fixture
def alone(recipe: Path) -> Path:
    """The recipe of the tiny target without a drafter."""
    document = yaml.safe_load(recipe.read_text())
    document["speculation"].pop("draft", None)
    document["speculation"].pop("draft_len", None)
    document["speculation"].pop("options", None)
    document["speculation"]["method"] = "none"
    document["gates"] = {"lossless": True}
    recipe.write_text(yaml.safe_dump(document))
    return recipe


@pytest.fixture
def tools(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Doubles of Edge-LLM's commands, release 0.11.0 without TensorRT."""
    directory = workplace / "edge" / "bin"
    directory.mkdir(parents=True)
    for name in ("quantize", "export", "build"):
        command = directory / f"tensorrt-edgellm-{name}"
        command.write_text(COMMAND)
        command.chmod(0o755)
    monkeypatch.setenv("TRTSPEC_EDGE_LLM", str(directory.parent))
    install(monkeypatch)
    return directory


def install(monkeypatch: pytest.MonkeyPatch, version: str = "0.11.0", tensorrt: str | None = None) -> None:
    monkeypatch.setattr(toolchain, "installed_versions", lambda script, package: (version, tensorrt))


def show_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = DetectedGpu("NVIDIA GeForce RTX 5090", 120, "590.44.01", 32607)
    for module in ("toolchain", "artifact"):
        monkeypatch.setattr(f"trtspec.backends.edge_llm.{module}.detect_gpus", lambda: [gpu])


def ran(tools: Path) -> list[list[str]]:
    log = tools / "ran.jsonl"
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def test_build_without_the_tools_fails_with_install_hints(alone: Path, trtspec: Run, monkeypatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("TRTSPEC_EDGE_LLM", raising=False)
    planned = trtspec("plan", alone, *FOR_EDGE, "--json")
    assert planned.code == 0
    assert planned.document["toolchain"]["missing"] == "is not on PATH"
    refused = trtspec("build", alone, *FOR_EDGE)
    assert refused.code == 1
    assert "cannot export on this machine: tensorrt-edgellm-export is not on PATH" in refused.err
    assert "tensorrt-edgellm[tools]==0.11.0" in refused.err
    assert "TRTSPEC_EDGE_LLM" in refused.err


def test_other_installed_release_is_rejected(alone: Path, trtspec: Run, tools: Path, monkeypatch) -> None:
    install(monkeypatch, "0.10.1")
    refused = trtspec("plan", alone, *FOR_EDGE)
    assert refused.code == 1
    assert "TensorRT Edge-LLM 0.10.1 is installed, but the recipe requires 0.11.0" in refused.err


@pytest.mark.slow
def test_build_without_gpu_writes_only_the_inputs_of_engines(alone: Path, trtspec: Run, tools: Path) -> None:
    before = {path.name for path in alone.parent.glob("*/chat_template.jinja")}
    built = trtspec("build", alone, *FOR_EDGE, "--set", "target.quantization.weights=fp8", "--out", "made")
    assert built.code == 0, built.err
    assert [argv[0] for argv in ran(tools)] == ["tensorrt-edgellm-quantize", "tensorrt-edgellm-export"]
    made = Path("made")
    assert json.loads((made / "checkpoints/target/config.json").read_text())["calibrated_on"] > 1
    assert (made / "onnx/target/llm/model.onnx").is_file()
    assert not (made / "engines").exists()
    script = (made / "reproduce.sh").read_text()
    assert "tensorrt-edgellm-build --model-dir checkpoints/target --engine-dir engines/target" in script
    assert subprocess.run(["sh", "-n", made / "reproduce.sh"], check=False, timeout=60).returncode == 0
    assert not before
    with pytest.raises(DeployError, match="the artifact contains only the inputs of engines"):
        check_machine(made, load_manifest(made))


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["none", "fp8"])
def test_verify_accepts_what_the_build_changes_and_rejects_other_differences(
    weights: str, alone: Path, trtspec: Run, tools: Path
) -> None:
    assert trtspec("build", alone, *FOR_EDGE, "--set", f"target.quantization.weights={weights}").code == 0
    verified = trtspec("verify", "build/tiny", "--json")
    assert verified.code == 0, verified.err
    (sources,) = (check for check in verified.document["checks"] if check["name"] == "sources")
    changed = "chat_template.jinja" if weights == "none" else "config.json"
    assert f"changed by the build: checkpoints/target/{changed}" in sources["detail"]
    tokenizer = alone.parent / "target" / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text() + "\n")
    refused = trtspec("verify", "build/tiny")
    assert refused.code == 110
    assert "tokenizer/tokenizer.json: differs from" in refused.out


@pytest.mark.slow
def test_relative_environment_is_found_by_steps(alone: Path, trtspec: Run, tools: Path, monkeypatch) -> None:
    monkeypatch.setenv("TRTSPEC_EDGE_LLM", "edge")
    built = trtspec("build", alone, *FOR_EDGE)
    assert built.code == 0, built.err
    assert toolchain.command_directory() == str(tools)


def test_doctor_reports_an_environment_without_the_commands(monkeypatch) -> None:
    monkeypatch.setenv("TRTSPEC_EDGE_LLM", "/nowhere")
    (check,) = toolchain.probes()
    assert (check.ok, check.detail) == (False, "no tensorrt-edgellm-export in /nowhere/bin")
    assert check.hint
    assert "TRTSPEC_EDGE_LLM" in check.hint


@pytest.mark.slow
def test_repeated_build_uses_cached_steps(alone: Path, trtspec: Run, tools: Path) -> None:
    assert trtspec("build", alone, *FOR_EDGE, "--out", "made").code == 0
    template = Path("made/checkpoints/target/chat_template.jinja")
    assert template.read_text() == PLAIN_TEMPLATE
    assert trtspec("build", alone, *FOR_EDGE, "--out", "again").code == 0
    assert len(ran(tools)) == 1
    steps = {step["name"]: step["status"] for step in trtspec("plan", alone, *FOR_EDGE, "--json").document["steps"]}
    assert set(steps.values()) == {"hit"}


@pytest.mark.slow
def test_build_with_tensorrt_and_gpu_writes_engines(alone: Path, trtspec: Run, tools: Path, monkeypatch) -> None:
    install(monkeypatch, tensorrt="11.0.0.114")
    show_gpu(monkeypatch)
    built = trtspec("build", alone, *FOR_EDGE, "--out", "made")
    assert built.code == 0, built.err
    assert [argv[0] for argv in ran(tools)] == ["tensorrt-edgellm-build"]
    assert Path("made/engines/target/llm.engine").is_file()
    manifest = load_manifest(Path("made"))
    assert (manifest.tools["edge_llm"], manifest.tools["tensorrt"]) == ("0.11.0", "11.0.0.114")
    assert manifest.gpu["driver"] == "590.44.01"


def test_incompatible_tensorrt_version_is_reported_in_the_plan(
    alone: Path, trtspec: Run, tools: Path, monkeypatch
) -> None:
    install(monkeypatch, tensorrt="10.3.0")
    show_gpu(monkeypatch)
    facts = trtspec("plan", alone, *FOR_EDGE, "--json").document["toolchain"]
    wanted = "10.16.0.72 or 11.0.0.114"
    assert facts["why_no_engines"] == f"TensorRT 10.3.0 is installed, but Edge-LLM 0.11.0 requires {wanted}"


def edge_steps(recipe: Path) -> list[RunEdgeTool]:
    (loaded,) = load_matrix(recipe, FOR_EDGE[1::2])
    return [step for step in plan_build(loaded, read_all=True).plan.steps if isinstance(step, RunEdgeTool)]


def test_machine_with_other_tools_than_the_keys_refuses_the_steps(alone: Path, tools: Path, monkeypatch) -> None:
    (export,) = edge_steps(alone)
    install(monkeypatch, tensorrt="11.0.0.114")
    show_gpu(monkeypatch)
    (build,) = edge_steps(alone)
    for step in (export, build):
        step.check_machine()
    install(monkeypatch, tensorrt="10.16.0.72")
    export.check_machine()
    with pytest.raises(StepError, match=r"build-engines as it was planned: TensorRT is 10\.16\.0\.72 instead of 11\.0"):
        build.check_machine()
    install(monkeypatch, "0.10.1")
    with pytest.raises(StepError, match=r"export-target as it was planned: Edge-LLM is 0\.10\.1 instead of 0\.11\.0"):
        export.check_machine()
    monkeypatch.setenv("TRTSPEC_EDGE_LLM", "/nowhere")
    with pytest.raises(StepError, match="Edge-LLM is absent instead of"):
        export.check_machine()


def test_failed_command_reports_its_exit_status_and_last_output(alone: Path, trtspec: Run, tools: Path) -> None:
    (tools / "fails").touch()
    failed = trtspec("build", alone, *FOR_EDGE)
    assert failed.code == 100
    assert "tensorrt-edgellm-export failed with exit status 3" in failed.err
    assert "the last words of tensorrt-edgellm-export" in failed.err


@pytest.mark.slow
def test_command_without_its_expected_output_fails_the_step(alone: Path, trtspec: Run, tools: Path) -> None:
    (tools / "forgets").touch()
    failed = trtspec("build", alone, *FOR_EDGE)
    assert failed.code == 100
    assert "tensorrt-edgellm-export succeeded but did not write llm/config.json" in failed.err


def test_engine_sizes_other_than_requested_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"builder_config": {"max_batch_size": 1}}))
    with pytest.raises(StepError, match="max_batch_size is 1, expected 4; max_input_len is missing, expected 9"):
        check_engines(tmp_path, {"max_batch_size": 4, "max_input_len": 9})
