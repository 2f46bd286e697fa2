# SPDX-License-Identifier: Apache-2.0
"""Facts about each Edge-LLM release, and the detection of its commands and of suitable GPUs on this machine.

The environment variable TRTSPEC_EDGE_LLM is the path of the environment with the commands; by default they are searched
on PATH. Edge-LLM is not imported.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pydantic import TypeAdapter

from trtspec.backends.common.build_tools import installed_versions
from trtspec.backends.edge_llm.arguments import BUILD, EXPORT
from trtspec.core.diagnostics import Diagnostic
from trtspec.core.errors import TrtspecError
from trtspec.core.gpus import detect_gpus, find_gpu
from trtspec.core.installation import DoctorCheck
from trtspec.core.paths import load_package_yaml
from trtspec.core.versions import KnownReleases

ENVIRONMENT = "TRTSPEC_EDGE_LLM"
PACKAGE = "tensorrt-edgellm"


@dataclass(frozen=True)
class Platform:
    """A platform with published native libraries of Edge-LLM.

    `sm` is the GPU's compute capability times ten. `tensorrt` are the compatible versions of TensorRT.
    """

    sm: int
    system: str
    tensorrt: tuple[str, ...]


@dataclass(frozen=True)
class EdgeRelease:
    """A release of Edge-LLM; `methods` are its names by trtspec's, and the three below are values of model_type."""

    version: str
    released: str
    source: str
    python: tuple[str, ...]
    platforms: tuple[Platform, ...]
    methods: dict[str, str]
    models: tuple[str, ...]
    mtp_models: tuple[str, ...]
    assistant_targets: tuple[str, ...]
    formats: tuple[str, ...]

    @property
    def sms(self) -> list[int]:
        return sorted({platform.sm for platform in self.platforms})

    def tensorrt_for(self, sm: int) -> list[str]:
        """Return the TensorRT versions for compute capability `sm` / 10; empty if the release does not support it."""
        return sorted({version for platform in self.platforms if platform.sm == sm for version in platform.tensorrt})


@cache
def releases() -> dict[str, EdgeRelease]:
    """Return the known releases by version, oldest first; looking up another version returns the nearest release."""
    found = TypeAdapter(list[EdgeRelease]).validate_python(load_package_yaml(Path(__file__).with_name("versions.yaml")))
    return KnownReleases({release.version: release for release in found})


@dataclass(frozen=True)
class EdgeToolchain:
    """The installation of Edge-LLM on this machine; `directory` contains its commands.

    If Edge-LLM is not installed, `directory` is "" and `missing` is the reason. If engines cannot be built, `tensorrt`
    and `driver` are "" and `why_no_engines` is the reason. `devices` are the ids of the suitable GPUs.
    """

    version: str
    directory: str = ""
    missing: str = ""
    tensorrt: str = ""
    driver: str = ""
    why_no_engines: str = ""
    devices: tuple[str, ...] = ()

    @property
    def device(self) -> str:
        return "cuda" if self.devices else "cpu"

    @property
    def identity(self) -> tuple[tuple[str, str], ...]:
        """Return the names and values that decide which steps a plan has, and which engines a device can load."""
        found = {"Edge-LLM": self.version, "TensorRT": self.tensorrt, "driver": self.driver, "device": self.device}
        return tuple({**found, "missing": self.missing or self.why_no_engines}.items())

    @property
    def builds_engines(self) -> bool:
        return not (self.missing or self.why_no_engines)

    def lack(self) -> Diagnostic | None:
        """Return a diagnostic if Edge-LLM is not installed, otherwise None."""
        if not self.missing:
            return None
        message = f"cannot export on this machine: {EXPORT} {self.missing}"
        pythons = ", ".join(releases()[self.version].python)
        hint = f"pip install 'tensorrt-edgellm[tools]=={self.version}' (Python {pythons}) into a separate environment, "
        hint += f"and set {ENVIRONMENT} to its path"
        return Diagnostic("engine", "no-toolchain", message, hint)


def command_directory() -> str:
    """Return the absolute path of the directory of Edge-LLM's commands; "" if they are not installed.

    Steps run the commands in other directories, so a relative path would not lead to them.
    """
    asked = os.environ.get(ENVIRONMENT)
    found = shutil.which(EXPORT, path=str(Path(asked) / "bin")) if asked else shutil.which(EXPORT)
    return str(Path(found).absolute().parent) if found else ""


def installed_release() -> tuple[str, str]:
    """Return the versions of Edge-LLM and TensorRT in its environment, each "" if it is not installed."""
    directory = command_directory()
    found, tensorrt = installed_versions(Path(directory) / EXPORT, PACKAGE) if directory else ("", "")
    return found or "", tensorrt or ""


def probe_toolchain(version: str, gpu_name: str) -> EdgeToolchain:
    """Return the toolchain for a release and a GPU; raise TrtspecError if another release is installed."""
    asked = os.environ.get(ENVIRONMENT)
    directory = command_directory()
    if not directory:
        where = f"is not in {Path(asked) / 'bin'}" if asked else "is not on PATH"
        return EdgeToolchain(version, missing=where, why_no_engines=f"{BUILD} {where}")
    found, tensorrt = installed_release()
    if found != version:
        message = f"TensorRT Edge-LLM {found or '(none)'} is installed, but the recipe requires {version}"
        raise TrtspecError(message, where=directory, hint=f"set engine.version, or {ENVIRONMENT}")
    gpu, seen = find_gpu(gpu_name), detect_gpus()
    devices = tuple(str(number) for number, each in enumerate(seen) if each.is_a(gpu))
    fitting = releases()[version].tensorrt_for(gpu.sm)
    why = ""
    if not devices:
        why = f"the GPU {gpu.name} is not visible"
    elif tensorrt not in fitting:
        why = f"TensorRT {tensorrt or '(none)'} is installed, but Edge-LLM {version} requires {' or '.join(fitting)}"
    if why:
        return EdgeToolchain(version, directory, why_no_engines=why, devices=devices)
    return EdgeToolchain(version, directory, tensorrt=tensorrt, driver=seen[0].driver, devices=devices)


def probes() -> list[DoctorCheck]:
    directory = command_directory()
    if not directory and (asked := os.environ.get(ENVIRONMENT)):
        hint = f"set {ENVIRONMENT} to the environment in which tensorrt-edgellm[tools] is installed"
        return [DoctorCheck("tensorrt-edgellm", False, f"no {EXPORT} in {Path(asked) / 'bin'}", hint)]
    if not directory:
        return [DoctorCheck("tensorrt-edgellm", True, f"not on PATH, and {ENVIRONMENT} is not set")]
    found, tensorrt = installed_versions(Path(directory) / EXPORT, PACKAGE)
    builder = f"TensorRT {tensorrt}" if tensorrt else "no TensorRT: it can export but not build engines"
    return [DoctorCheck("tensorrt-edgellm", True, f"{found} in {directory}, {builder}")]
