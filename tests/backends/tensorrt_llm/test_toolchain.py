# SPDX-License-Identifier: Apache-2.0
"""Detection of the builder of engines: doubles on PATH, and machines without a builder."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.doubles.fixtures import H200, Installation
from trtspec.backends.common.build_tools import installed_versions
from trtspec.backends.tensorrt_llm.toolchain import EngineToolchain, probe_toolchain
from trtspec.core.errors import TrtspecError
from trtspec.core.gpus import DetectedGpu, detect_gpus, find_gpu
from trtspec.store.digest import canonical

IMAGE = f"registry.example/tritonserver@sha256:{'0' * 64}"
H100 = "NVIDIA H100 80GB HBM3, 9.0, 590.44.01, 81559"
LOCAL = EngineToolchain("local", "", "1.2.1", "10.14.1.48", "h200", 90, "590.44.01", devices=("0", "1"))


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine whose PATH contains only the returned directory."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def program(directory: Path, name: str, text: str) -> Path:
    path = directory / name
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.mark.slow
def test_builder_on_path_is_detected(trtllm: Installation) -> None:
    assert probe_toolchain("", "1.2.1", "H200") == LOCAL
    assert LOCAL.lack() is None


@pytest.mark.slow
def test_only_gpus_of_the_requested_kind_are_used(trtllm: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    trtllm.show_gpus(H200, H100, H200, H200)
    assert probe_toolchain("", "1.2.1", "h200").devices == ("0", "2", "3")
    assert probe_toolchain("", "1.2.1", "h100").devices == ("1",)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,2,3")
    assert probe_toolchain("", "1.2.1", "h200").devices == ("2", "3")


@pytest.mark.slow
def test_other_gpu_than_requested_prevents_builds(trtllm: Installation) -> None:
    trtllm.show_gpus(H100)
    toolchain = probe_toolchain("", "1.2.1", "h200")
    assert (toolchain.kind, toolchain.tensorrt, toolchain.devices) == ("absent", "10.14.1.48", ())
    lack, here = toolchain.lack(), "the visible GPUs are: NVIDIA H100 80GB HBM3"
    assert lack is not None
    assert lack.message == f"cannot build engines: the recipe requires the GPU h200, but {here}"
    assert lack.hint == "build on the target machine, or set engine.gpu"


def test_other_installed_version_is_an_error(trtllm: Installation) -> None:
    trtllm.install("1.1.0")
    with pytest.raises(TrtspecError) as caught:
        probe_toolchain("", "1.2.1", "h200")
    assert caught.value.message == (
        "TensorRT-LLM 1.1.0 with TensorRT 10.13.3.9 is installed, but the recipe requires 1.2.1"
    )
    assert str(caught.value.hint).startswith("pip install tensorrt-llm==1.2.1, or set engine.version")
    assert caught.value.where == str(trtllm.root / "bin" / "trtllm-build")


@pytest.mark.slow
def test_release_candidate_matches_its_release_and_retains_its_version(trtllm: Installation) -> None:
    trtllm.install("1.2.0rc8")
    assert probe_toolchain("", "1.2.0", "h200").tensorrt_llm == "1.2.0rc8"
    with pytest.raises(TrtspecError, match=r"1\.2\.0rc8 .* is installed, but the recipe requires 1\.2\.1"):
        probe_toolchain("", "1.2.1", "h200")


def test_missing_builder_is_detected_without_starting_a_process(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subprocess.run", None)
    toolchain = probe_toolchain("", "1.2.1", "h200")
    assert toolchain == replace(
        LOCAL, kind="absent", devices=(), missing="trtllm-build is not on PATH", hint=toolchain.hint
    ), "the versions and the driver are those to be expected"
    lack = toolchain.lack()
    assert lack is not None
    assert lack.message == "cannot build engines: trtllm-build is not on PATH"
    assert "pip install tensorrt-llm==1.2.1 on a machine with the GPU" in str(lack.hint)


def test_missing_gpu_is_reported(trtllm: Installation) -> None:
    (trtllm.root / "bin" / "nvidia-smi").unlink()
    assert probe_toolchain("", "1.2.1", "h200").missing.endswith("the visible GPUs are: none")


def test_image_toolchain_runs_the_builder_in_a_container(trtllm: Installation) -> None:
    program(trtllm.root / "bin", "podman", "#!/bin/sh\n")
    program(trtllm.root / "bin", "docker", "#!/bin/sh\n")
    toolchain = probe_toolchain(IMAGE, "1.2.1", "h200")
    assert (toolchain.kind, toolchain.image, toolchain.runtime) == ("image", IMAGE, "docker")
    assert toolchain.tensorrt == "10.14.1.48"
    command = toolchain.command(
        ("--workers", "1"), reads=("checkpoints/target",), writes="engines/target", cid_file="x"
    )
    assert command == (
        "docker", "run", "--rm", "--init", "--network=none", "--cidfile=x", "--gpus=all",
        f"--user={os.getuid()}:{os.getgid()}", "--env=CUDA_VISIBLE_DEVICES", "--env=CUDA_DEVICE_ORDER",
        "--tmpfs=/build:mode=1777", "--workdir=/build", "--env=HOME=/tmp",
        "--volume=./checkpoints/target:/build/checkpoints/target:ro", "--volume=./engines/target:/build/engines/target",
        IMAGE, "trtllm-build", "--workers", "1",
    )  # fmt: skip
    assert toolchain.cleanup("x") == ("xargs", "--arg-file=x", "docker", "rm", "--force")
    podman = replace(toolchain, runtime="podman").command((), reads=(), writes="e", cid_file="x")
    assert {"--device=nvidia.com/gpu=all", "--userns=keep-id"} <= set(podman)
    assert LOCAL.command(("--workers", "1"), reads=(), writes="e", cid_file="x") == ("trtllm-build", "--workers", "1")
    assert LOCAL.cleanup("x") == ()


def test_image_without_container_runtime_is_reported(bare: Path) -> None:
    toolchain = probe_toolchain(IMAGE, "1.2.1", "h200")
    assert (toolchain.kind, toolchain.missing) == ("absent", "docker and podman are not on PATH, to run the image")


def test_toolchain_identity_excludes_runtime_and_devices() -> None:
    differences = {"image": IMAGE, "tensorrt_llm": "1.2.0", "tensorrt": "10.14", "gpu": "h100", "sm": 89, "driver": "x"}
    for name, value in differences.items():
        assert canonical(replace(LOCAL, **{name: value})) != canonical(LOCAL), name  # type: ignore[arg-type]
    for name, value in {"runtime": "podman", "devices": (), "missing": "x", "hint": "x"}.items():
        assert canonical(replace(LOCAL, **{name: value})) == canonical(LOCAL), name  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("h200", H200), ("h100", H100), ("a100-40gb", "NVIDIA A100-SXM4-40GB, 8.0, 1, 40960"),
        ("a100-80gb", "NVIDIA A100 80GB PCIe, 8.0, 1, 81920"), ("l4", "NVIDIA L4, 8.9, 1, 23034"),
        ("l40s", "NVIDIA L40S, 8.9, 1, 46068"), ("rtx4090", "NVIDIA GeForce RTX 4090, 8.9, 1, 24564"),
        ("b200", "NVIDIA B200, 10.0, 1, 183359"), ("gh200", "NVIDIA GH200 480GB, 9.0, 1, 97871"),
    ],
)  # fmt: skip
def test_gpu_is_identified_by_name_and_memory(name: str, line: str, trtllm: Installation) -> None:
    trtllm.show_gpus(line)
    (seen,) = detect_gpus()
    assert seen.is_a(find_gpu(name))
    others = {"h200", "h100", "a100-40gb", "a100-80gb", "l4", "l40s", "a10", "gh200"} - {name}
    assert not any(seen.is_a(find_gpu(other)) for other in others)


def test_nvidia_smi_failure_or_unexpected_output_is_an_error(bare: Path) -> None:
    program(bare, "nvidia-smi", "#!/bin/sh\necho 'NVIDIA-SMI has failed' >&2; exit 9\n")
    with pytest.raises(TrtspecError, match="failed: exit status 9: NVIDIA-SMI has failed"):
        detect_gpus()
    program(bare, "nvidia-smi", "#!/bin/sh\necho 'one, two'\n")
    with pytest.raises(TrtspecError, match=r"nvidia-smi: printed unexpected output \['one, two'\]"):
        detect_gpus()
    program(bare, "nvidia-smi", "#!/bin/sh\n")
    assert detect_gpus() == []
    assert DetectedGpu("NVIDIA H200", 89, "1", 143771).is_a(find_gpu("h200")) is False


def test_interpreter_with_a_long_path_is_found(trtllm: Installation, tmp_path: Path) -> None:
    script = f"#!/bin/sh\n'''exec' \"{sys.executable}\" \"$0\" \"$@\"\n' '''\n"
    assert installed_versions(program(tmp_path, "trtllm-build", script), "tensorrt_llm") == ("1.2.1", "10.14.1.48")


@pytest.mark.parametrize("text", ["", "\x7fELF", "#!/bin/sh\necho\n"])
def test_builder_that_is_not_a_python_program_is_an_error(text: str, tmp_path: Path) -> None:
    with pytest.raises(TrtspecError, match="not a Python program"):
        installed_versions(program(tmp_path, "trtllm-build", text), "tensorrt_llm")


def test_missing_interpreter_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TrtspecError, match=r"failed: .*No such file"):
        installed_versions(program(tmp_path, "trtllm-build", "#!/no/such/python3\n"), "tensorrt_llm")


def test_interpreter_without_packages_has_no_version(tmp_path: Path) -> None:
    script = program(tmp_path, "trtllm-build", f"#!{sys.executable}\n")
    assert installed_versions(script, "tensorrt_llm")[0] is None


def test_unified_memory_gpu_is_detected(trtllm: Installation) -> None:
    trtllm.show_gpus("NVIDIA GB10, 12.1, 580.95.05, [N/A]")
    assert detect_gpus() == [DetectedGpu("NVIDIA GB10", 121, "580.95.05", 0)]
