# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's TensorRT-LLM containers (containers.yaml), and the comparison of versions with releases."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from trtspec.core.package_data import load_package_yaml

CONTAINERS = Path(__file__).with_name("containers.yaml")
_CANDIDATE = re.compile(r"rc\d+(\.post\d+)?")


@dataclass(frozen=True)
class Container:
    """A container by its tag (26.07), with its release in NVIDIA's table, and TensorRT, CUDA and driver.

    `says` is the version that TensorRT-LLM itself reports there if it is not the release, else ""; `inferred` marks a
    container that was not read in a file of that tag.
    """

    tag: str
    release: str
    tensorrt: str
    cuda: str
    driver: str
    says: str = ""
    inferred: bool = False


@cache
def _document() -> dict[str, Any]:
    document: dict[str, Any] = load_package_yaml(CONTAINERS)
    return document


@cache
def containers() -> tuple[Container, ...]:
    """Return the containers, oldest first."""
    return tuple(Container(**each) for each in _document()["containers"])


def container_images(version: str) -> tuple[str, ...]:
    """Return the container images, by tag, that ship a release, newest first."""
    image = _document()["image"]
    return tuple(image.replace("TAG", each.tag) for each in reversed(containers()) if each.release == version)


def is_release(version: object, release: str) -> bool:
    """Return whether a reported version is a release or a candidate for it: 1.2.0rc8 for 1.2.0.

    Containers ship candidates under the release's name.
    """
    if not isinstance(version, str) or not version.startswith(release):
        return False
    rest = version[len(release) :]
    return not rest or bool(_CANDIDATE.fullmatch(rest))
