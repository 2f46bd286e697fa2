# SPDX-License-Identifier: Apache-2.0
"""The compiled library for CPU work of builds (quantization and hashing): loaded or compiled if it pays off."""

from __future__ import annotations

import logging

from trtspec.core.errors import TrtspecError
from trtspec.kernels.bindings import KernelLibrary, load_library
from trtspec.kernels.build import HOST_PLUGINS, build_library, find_libraries, loads, plan_library

log = logging.getLogger(__name__)

WORTH_BYTES = 512 << 20  # numpy converts as many in about a second
COMPILE_BYTES = 4 << 30  # for fewer, the three seconds of compiling (once per user) do not pay off
COMPILE_S = 60


def host_library(nbytes: int) -> KernelLibrary | None:
    """Return the library for work on `nbytes` bytes; for many bytes, compile it within `COMPILE_S` if none loads.

    Returns None if it does not pay off, or if there is neither a library nor a compiler; then numpy and hashlib compute
    the same results.
    """
    if nbytes < WORTH_BYTES:
        return None
    try:
        found = next(iter(find_libraries(HOST_PLUGINS)), None)
        if nbytes >= COMPILE_BYTES and not (found and loads(found)):
            found = build_library(plan_library(HOST_PLUGINS), COMPILE_S)
        return load_library(found) if found else None
    except (TrtspecError, OSError) as error:
        log.info("using numpy and hashlib, which are slower but equivalent: %s", error)
        return None
