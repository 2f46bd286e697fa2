# SPDX-License-Identifier: Apache-2.0
"""Fixtures that install the doubles: programs on PATH, package metadata and GPUs."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests._support import forked
from trtspec.backends.common.trtllm_versions import find_version_spec

DOUBLES = Path(__file__).parent
BUILDER = "trtllm-build"
H200 = "NVIDIA H200, 9.0, 590.44.01, 143771"


@dataclass(frozen=True)
class Installation:
    """A directory of programs on PATH and a directory of packages; the programs run with `variables`."""

    root: Path

    def install(self, version: str = "1.2.1", tensorrt: str | None = None, **variables: str) -> None:
        """Install TensorRT-LLM in a version, replacing another."""
        self.add_package("tensorrt_llm", version)
        self.add_package("tensorrt", tensorrt or find_version_spec(version).release(version).tensorrt)
        self.add_program(BUILDER, TRTLLM_DOUBLE_VERSION=version, **variables)

    def show_gpus(self, *lines: str) -> None:
        """Add GPUs, each as a line of nvidia-smi's output."""
        self.add_program("nvidia-smi", NVIDIA_SMI_DOUBLE="\n".join(lines))

    def trouble(self, what: str, version: str = "1.2.1", **variables: str) -> None:
        """Make builds fail (trouble.py)."""
        self.install(version, TRTLLM_DOUBLE_TROUBLE=what, **variables)

    def add_program(self, name: str, **variables: str) -> None:
        """Add a double with its own environment, because tools get few variables; without trouble it runs in a fork."""
        lines = (
            "import os, runpy",
            f"os.environ.update({variables!r})",
            f"runpy.run_path({str(DOUBLES / name)!r}, run_name='__main__')",
        )
        program = self.root / "bin" / name
        program.parent.mkdir(exist_ok=True)
        if name == BUILDER and "TRTLLM_DOUBLE_TROUBLE" not in variables:
            forked.make_program(program, ("-c", "\n".join(lines)), forked.CORE)
        else:
            program.write_text("\n".join((f"#!{sys.executable}", *lines)) + "\n")
            program.chmod(0o755)

    def add_package(self, name: str, version: str) -> None:
        """Add a package's metadata, replacing another version."""
        info = self.root / "packages" / f"{name}.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


@pytest.fixture
def trtllm(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Installation:
    """The newest version of TensorRT-LLM's double with trtllm-build, on a machine with two H200."""
    installation = Installation(tmp_path_factory.mktemp("trtllm"))
    installation.install()
    installation.show_gpus(H200, H200)
    bin_, packages = installation.root / "bin", installation.root / "packages"
    monkeypatch.setenv("PATH", f"{bin_}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(packages))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return installation
