# SPDX-License-Identifier: Apache-2.0
"""The step that adds compiled kernels to an artifact."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from trtspec.core.errors import TrtspecError
from trtspec.core.gpus import find_gpu
from trtspec.kernels.build import HOST_PLUGINS, LIBRARY, LibrarySpec, build_library, plan_library
from trtspec.kernels.toolchain import gpu_architecture
from trtspec.store.step import Inputs, Step, StepProgress


def plan_recipe_library(plugins: Sequence[str], gpu: str) -> LibrarySpec:
    """Return the library of a recipe's plugins for CPUs and, unless `gpu` is "", for that GPU.

    Raise TrtspecError for a plugin that artifacts cannot use, an unsupported plugin or GPU, and a missing compiler.
    """
    for name in plugins:
        if name in HOST_PLUGINS:
            raise TrtspecError(f"{name} is used by builds only, not by engines", hint=f"remove {name}")
    return plan_library(tuple(plugins), (gpu_architecture(find_gpu(gpu).sm),) if gpu else ())


@dataclass(frozen=True)
class CompilePlugins(Step):
    """Compile a recipe's plugins into one shared library; the sources and compilers are part of the step's key."""

    VERSION: ClassVar[int] = 1

    library: LibrarySpec

    @property
    def name(self) -> str:
        """Return the step's name."""
        return "compile-plugins"

    def run(self, out: Path, inputs: Inputs, progress: StepProgress) -> None:
        """Write the library, from the cache if it was compiled before. Raise StepError or StepTimeout."""
        progress.say(" ".join(self.library.plugins))
        shutil.copyfile(build_library(self.library), out / LIBRARY)
