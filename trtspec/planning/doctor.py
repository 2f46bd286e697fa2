# SPDX-License-Identifier: Apache-2.0
"""What of this machine can be used: packages, server, GPU, disk. Probes; changes nothing."""

from __future__ import annotations

import os
import platform
import shutil
from pathlib import Path

from trtspec.backends.base import backends
from trtspec.core.doctor_check import Probe, probe_package
from trtspec.core.errors import TrtspecError
from trtspec.core.interpreter import version_fault
from trtspec.core.paths import cache_dir, state_dir
from trtspec.serving.triton.server import INSTALL_WHEEL, WHEEL, probe_server

LEAST_FREE_BYTES = 2 << 30
HINTS = {
    "huggingface_hub": "pip install 'trtspec[hub]'",
    "tritonclient": "pip install 'trtspec[triton]'",
    WHEEL: INSTALL_WHEEL,
}
OF_ONE_COMMAND = {"aiohttp": "pip install 'trtspec[bench]'"}  # what `doctor` does not ask for


def probe_machine() -> list[Probe]:
    """Return what a build, a measurement and a deployment need here, and whether it is there."""
    found = [_python(), *(probe_package(package, hint) for package, hint in HINTS.items()), *probe_server()]
    found += [_folder("cache", cache_dir()), _folder("state", state_dir()), _conversions()]
    return [*found, *(probe for backend in backends().values() for probe in backend.probes())]


def install_hint(package: str) -> str | None:
    """Return how a Python package that is missing here is installed; None for one that nothing of ours needs."""
    probes = (probe for backend in backends().values() for probe in backend.probes())
    return (HINTS | OF_ONE_COMMAND).get(package) or next(
        (probe.hint for probe in probes if probe.name == package), None
    )


def _python() -> Probe:
    detail = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    fault = version_fault()
    return Probe("python", fault is None, detail, fault)


def _conversions() -> Probe:
    """Tell what computes large conversions; without a compiler they lack only speed."""
    from trtspec.kernels.build import HOST_PLUGINS, find_libraries  # compilers' flags, which only this command needs
    from trtspec.kernels.toolchain import probe_toolchain

    try:
        found = next(iter(find_libraries(HOST_PLUGINS)), None)
        detail = str(found) if found else f"numpy, until {probe_toolchain().cxx} compiles them, for the first large one"
    except TrtspecError as error:
        detail = f"numpy, which is slower: {error.message}"
    return Probe("conversions", True, detail)


def _folder(name: str, folder: Path) -> Probe:
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    variable = f"TRTSPEC_{name.upper()}"
    if not os.access(nearest, os.W_OK):
        return Probe(name, False, f"{folder} cannot be written", f"point {variable} at a directory that can")
    free = shutil.disk_usage(nearest).free
    detail = f"{folder}, {free / 2**30:.1f} GiB free"
    return Probe(name, free >= LEAST_FREE_BYTES, detail, f"make room, or point {variable} at another disk")
