# SPDX-License-Identifier: Apache-2.0
"""The library that tests of compiled kernels share."""

from __future__ import annotations

from pathlib import Path

import pytest

from trtspec.errors import TrtspecError
from trtspec.kernels.bindings import KernelLibrary, load_library
from trtspec.kernels.build import Plugin, build_library, plan_library

HERE = Path(__file__).parent
PATHS = Plugin.paths


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests of this folder: they compile."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker("slow")


@pytest.fixture(scope="session", params=["this processor", "any processor"])
def cpu_library(request: pytest.FixtureRequest, kernel_cache: Path) -> KernelLibrary:
    """All plugins, compiled for CPUs: with what is chosen for this processor, and without."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRTSPEC_CACHE", str(kernel_cache))
        if request.param == "any processor":
            patch.setattr(Plugin, "paths", lambda plugin, architectures, _: PATHS(plugin, architectures, ""))
        try:
            spec = plan_library()
        except TrtspecError as error:
            pytest.skip(error.message)
        return load_library(build_library(spec))
