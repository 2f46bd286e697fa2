# SPDX-License-Identifier: Apache-2.0
"""Read-only probes of this machine for `trtspec doctor`: packages, server, GPU and disk."""

from __future__ import annotations

import os
import platform
import shutil
from pathlib import Path

from trtspec.backends.base import backends
from trtspec.core.errors import TrtspecError
from trtspec.core.installation import DoctorCheck, check_package
from trtspec.core.interpreter import version_problem
from trtspec.core.paths import cache_dir, state_dir
from trtspec.serving.triton.server import INSTALL_WHEEL, WHEEL, probe_server

LEAST_FREE_BYTES = 2 << 30
HINTS = {
    "huggingface_hub": "pip install 'trtspec[hub]'",
    "tritonclient": "pip install 'trtspec[triton]'",
    WHEEL: INSTALL_WHEEL,
}
OPTIONAL_PACKAGES = {"aiohttp": "pip install 'trtspec[bench]'"}  # packages that `doctor` does not check


def probe_machine() -> list[DoctorCheck]:
    """Check everything that builds, measurements and deployments need on this machine."""
    detail = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    fault = version_problem()
    python = DoctorCheck("python", fault is None, detail, fault)
    found = [python, *(check_package(package, hint) for package, hint in HINTS.items()), *probe_server()]
    found += [_folder("cache", cache_dir()), _folder("state", state_dir()), _conversions()]
    return [*found, *(probe for backend in backends().values() for probe in backend.probes())]


def install_hint(package: str) -> str | None:
    """Return the command that installs a missing Python package, or None if trtspec does not use the package."""
    probes = (probe for backend in backends().values() for probe in backend.probes())
    return (HINTS | OPTIONAL_PACKAGES).get(package) or next(
        (probe.hint for probe in probes if probe.name == package), None
    )


def _conversions() -> DoctorCheck:
    """Report the implementation that converts tensors; without a compiler, conversions are only slower."""
    from trtspec.kernels.build import (  # lazy: only this command needs it
        HOST_PLUGINS,
        describe_library,
        find_libraries,
        loads,
        probe_toolchain,
    )

    try:
        if found := next(filter(loads, find_libraries(HOST_PLUGINS)), None):
            detail = describe_library(found)
        else:
            detail = f"numpy, until {probe_toolchain().cxx} compiles them for the first large one"
    except TrtspecError as error:
        detail = f"numpy, which is slower: {error.message}"
    return DoctorCheck("conversions", True, detail)


def _folder(name: str, folder: Path) -> DoctorCheck:
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    variable = f"TRTSPEC_{name.upper()}"
    if not os.access(nearest, os.W_OK):
        return DoctorCheck(name, False, f"{folder} is not writable", f"set {variable} to a writable directory")
    free = shutil.disk_usage(nearest).free
    detail = f"{folder}, {free / 2**30:.1f} GiB free"
    return DoctorCheck(name, free >= LEAST_FREE_BYTES, detail, f"free disk space, or set {variable} to another disk")
