# SPDX-License-Identifier: Apache-2.0
"""The compiled library of what builds call on this machine's processors: where it pays and can be had."""

from __future__ import annotations

import logging

from trtspec.core.errors import TrtspecError
from trtspec.kernels.bindings import KernelLibrary, load_library
from trtspec.kernels.build import HOST_PLUGINS, build_library, find_libraries, loads, plan_library

log = logging.getLogger(__name__)

WORTH_BYTES = 512 << 20  # which numpy converts in about a second
COMPILE_BYTES = 4 << 30  # less gains nothing on the three seconds that compiling takes, once for a machine's user
COMPILE_S = 60


def host_library(nbytes: int) -> KernelLibrary | None:
    """Return the library for work on so many bytes, compiled within `COMPILE_S` where none loads and they are many.

    None where it would not pay, or there is neither a library nor a compiler: numpy and hashlib say the same.
    """
    if nbytes < WORTH_BYTES:
        return None
    try:
        found = next(iter(find_libraries(HOST_PLUGINS)), None)
        if nbytes >= COMPILE_BYTES and not (found and loads(found)):
            found = build_library(plan_library(HOST_PLUGINS), COMPILE_S)
        return load_library(found) if found else None
    except (TrtspecError, OSError) as error:
        log.info("weights are converted in numpy and hashed by hashlib, which is slower and says the same: %s", error)
        return None
