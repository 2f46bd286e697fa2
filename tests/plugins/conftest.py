# SPDX-License-Identifier: Apache-2.0
"""The library that tests of compiled kernels share."""

from __future__ import annotations

import pytest

from trtspec.errors import TrtspecError
from trtspec.kernels.bindings import KernelLibrary, load_library
from trtspec.kernels.build import build_library, plan_library


@pytest.fixture(scope="session")
def cpu_library(tmp_path_factory: pytest.TempPathFactory) -> KernelLibrary:
    """All plugins, compiled for CPUs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRTSPEC_CACHE", str(tmp_path_factory.mktemp("cache")))
        try:
            spec = plan_library()
        except TrtspecError as error:
            pytest.skip(error.message)
        return load_library(build_library(spec))
