# SPDX-License-Identifier: Apache-2.0
"""Compile the kernels for this machine's GPU, or a given one, unless cached, and link the library for the other parts.

python -m benchmarks.gpu.build [sm_90a]
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from benchmarks.gpu.parts import LIBRARY
from trtspec.kernels.build import build_library, find_libraries, gpu_architecture, list_libraries, plan_library


def library_for(architecture: str) -> Path:
    """Return a library of the current sources for the architecture from any compiler, compiling it if needed."""
    made = {one.path for one in list_libraries() if architecture in one.architectures}
    found = next((path for path in find_libraries() if path in made), None)
    return found or build_library(plan_library(architectures=(architecture,)))


def here() -> str:
    """Return nvcc's name of this machine's GPU architecture."""
    import torch

    major, minor = torch.cuda.get_device_capability()
    return gpu_architecture(10 * major + minor)


def main() -> None:
    path = library_for(sys.argv[1] if len(sys.argv) > 1 else here())
    LIBRARY.parent.mkdir(parents=True, exist_ok=True)
    LIBRARY.unlink(missing_ok=True)
    # relative, because the folder may be moved to another machine
    LIBRARY.symlink_to(os.path.relpath(path, LIBRARY.parent))
    print(path)


if __name__ == "__main__":
    main()
