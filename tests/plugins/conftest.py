# SPDX-License-Identifier: Apache-2.0
"""The library shared by tests of compiled kernels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from trtspec.kernels.bindings import KernelLibrary, load_library
from trtspec.kernels.build import Plugin

HERE = Path(__file__).parent
PATHS = Plugin.paths


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests of this folder as slow, because they compile."""
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker("slow")


@pytest.fixture(scope="session", params=["this processor", "any processor"])
def cpu_library(request: pytest.FixtureRequest, build_kernels: Callable[..., Path]) -> KernelLibrary:
    """All plugins, compiled for CPUs, with and without code for this processor."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "any processor":
            patch.setattr(Plugin, "paths", lambda plugin, architectures, _: PATHS(plugin, architectures, ""))
        return load_library(build_kernels())
