# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's containers of TensorRT-LLM (containers.yaml), and when a version's own word names a release."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from trtspec.core.package_data import read_own

CONTAINERS = Path(__file__).with_name("containers.yaml")
_CANDIDATE = re.compile(r"rc\d+(\.post\d+)?")


@dataclass(frozen=True)
class Container:
    """A container by its tag (26.07), with the release that its table names, and TensorRT, CUDA and driver.

    `says` is what TensorRT-LLM says of itself there where that is not the release, "" elsewhere; `inferred` tells that
    it was not read in a file of that tag.
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
    document: dict[str, Any] = read_own(CONTAINERS)
    return document


@cache
def containers() -> tuple[Container, ...]:
    """Return the containers, oldest first."""
    return tuple(Container(**each) for each in _document()["containers"])


def images_of(version: str) -> tuple[str, ...]:
    """Return the container images by tag that ship a release, newest first."""
    image = _document()["image"]
    return tuple(image.replace("TAG", each.tag) for each in reversed(containers()) if each.release == version)


def is_release(said: object, release: str) -> bool:
    """Return whether what a version says of itself is a release, or a candidate for it: 1.2.0rc8 for 1.2.0.

    Containers ship candidates under the release's name.
    """
    if not isinstance(said, str) or not said.startswith(release):
        return False
    rest = said[len(release) :]
    return not rest or bool(_CANDIDATE.fullmatch(rest))
