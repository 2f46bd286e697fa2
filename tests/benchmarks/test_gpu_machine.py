# SPDX-License-Identifier: Apache-2.0
"""How `make gpu` describes a machine, and how it installs a folder of wheels."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.gpu import wheels
from benchmarks.gpu.probe import probe

Tools = Callable[..., dict[str, str]]


@pytest.fixture
def tools(tmp_path: Path) -> Tools:
    """Make a PATH with only the given programs, each of which prints a line."""

    def make(**said: str) -> dict[str, str]:
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        for name, text in said.items():
            program = folder / name.replace("_", "-")
            program.write_text(f"#!/bin/sh\necho '{text}'\n")
            program.chmod(0o755)
        return {"PATH": str(folder)}

    return make


def distribution(site: Path, name: str, version: str) -> Path:
    folder = site / f"{name}-{version}.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return site


EVERYTHING = {"nvidia_smi": "NVIDIA H200, 143771 MiB, 9.0, 580.1", "nvcc": "release 13.0", "compute_sanitizer": ""}


def test_complete_machine_lacks_nothing(tools: Tools, tmp_path: Path) -> None:
    machine = probe(tools(**EVERYTHING), distribution(tmp_path / "site", "torch", "2.11.0+cu130"))
    assert machine.lacks == {}
    assert (machine.gpus, machine.nvcc, machine.torch) == ([EVERYTHING["nvidia_smi"]], "release 13.0", "2.11.0+cu130")


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        ("2.10.1+cu130", "torch is 2.10.1+cu130; 2.11 or newer is required"),
        ("2.13.0+cpu", "torch is 2.13.0+cpu, which is built without CUDA"),
        ("3.0", ""),
    ],
)
def test_unsuitable_torch_is_reported(version: str, reason: str, tools: Tools, tmp_path: Path) -> None:
    machine = probe(tools(**EVERYTHING), distribution(tmp_path / "site", "torch", version))
    assert machine.lacks.get("torch", "") == reason


def test_missing_tools_are_reported(tools: Tools, tmp_path: Path) -> None:
    machine = probe(tools(nvidia_smi=""), distribution(tmp_path / "site", "torch", "2.11.0"))
    assert set(machine.lacks) == {"gpu", "nvcc", "compute-sanitizer"}
    assert machine.reason(("torch", "gpu", "nvcc")) == (
        "nvidia-smi does not find a GPU; nvcc is not on PATH, in $CUDA_HOME/bin or in /usr/local/cuda/bin"
    )


def test_missing_packages_are_reported(tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.gpu.probe.MODULES", ("numpy", "nothing_of_that_name"))
    site = distribution(tmp_path / "site", "torch", "2.11.0")
    lacks = probe(tools(**EVERYTHING), site).lacks
    assert lacks == {"packages": "not installed (provide them as wheels): nothing_of_that_name"}
    (site / "nothing_of_that_name").mkdir()
    assert probe(tools(**EVERYTHING), site).lacks == {}


def make_wheel(folder: Path, tag: str = "py3-none-any") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    info = "brought-1.0.dist-info"
    with zipfile.ZipFile(folder / f"brought-1.0-{tag}.whl", "w") as wheel:
        wheel.writestr("brought.py", "VALUE = 7\n")
        wheel.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: brought\nVersion: 1.0\nRequires-Dist: absent\n"
        )
        wheel.writestr(f"{info}/WHEEL", f"Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: {tag}\n")
        wheel.writestr(f"{info}/RECORD", "")
    return folder


@pytest.mark.slow
def test_wheels_replace_the_site_directory(tmp_path: Path) -> None:
    """The wheel for this Python is chosen, and its dependencies are not resolved."""
    folder, site = make_wheel(tmp_path / "wheels"), tmp_path / "site"
    make_wheel(folder, "cp27-none-any")
    (site / "of-before").mkdir(parents=True)
    assert wheels.install(folder, site) == ""
    assert (site / "brought.py").read_text() == "VALUE = 7\n"
    assert not (site / "of-before").exists()


@pytest.mark.slow
def test_incompatible_or_missing_wheels_are_reported(tmp_path: Path) -> None:
    folder = make_wheel(tmp_path / "wheels", "cp27-none-any")
    assert wheels.install(folder, tmp_path / "site").startswith(f"pip did not unpack {folder}: ERROR: No matching")
    assert wheels.install(tmp_path / "nowhere", tmp_path / "site") == f"{tmp_path / 'nowhere'} does not contain wheels"
