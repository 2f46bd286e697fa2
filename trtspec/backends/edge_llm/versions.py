# SPDX-License-Identifier: Apache-2.0
"""The features of each release of TensorRT Edge-LLM; the facts are in versions.yaml, with their sources."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pydantic import TypeAdapter

from trtspec.core.paths import load_package_yaml

DATA = Path(__file__).with_name("versions.yaml")


@dataclass(frozen=True)
class Platform:
    """One platform with published native libraries.

    `sm` is the GPU's compute capability times ten, `tensorrt` are the compatible versions of TensorRT.
    """

    sm: int
    system: str
    tensorrt: tuple[str, ...]


@dataclass(frozen=True)
class EdgeRelease:
    """One release; `methods` maps trtspec's method names to its own; `models`, `mtp_models` are model_type values."""

    version: str
    source: str
    python: tuple[str, ...]
    platforms: tuple[Platform, ...]
    methods: dict[str, str]
    models: tuple[str, ...]
    mtp_models: tuple[str, ...]
    formats: tuple[str, ...]

    def platforms_for(self, sm: int) -> list[Platform]:
        return [platform for platform in self.platforms if platform.sm == sm]

    @property
    def sms(self) -> list[int]:
        return sorted({platform.sm for platform in self.platforms})


@cache
def releases() -> dict[str, EdgeRelease]:
    """Return the supported releases by version, oldest first."""
    found = TypeAdapter(list[EdgeRelease]).validate_python(load_package_yaml(DATA))
    return {release.version: release for release in found}
