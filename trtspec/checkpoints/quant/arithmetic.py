# SPDX-License-Identifier: Apache-2.0
"""Choice of the implementation of a conversion: the compiled library if it is available and worthwhile, else numpy.

The choice is made once, before the conversion starts, and affects only its speed: the output bytes are the same.
"""

from __future__ import annotations

import logging

from trtspec.checkpoints.arithmetic import Arithmetic, NumpyArithmetic
from trtspec.checkpoints.quant.selftest import run_self_test
from trtspec.core.errors import TrtspecError
from trtspec.kernels.autoload import host_library
from trtspec.kernels.bindings import KernelLibrary
from trtspec.kernels.quantize import CompiledArithmetic, fastest_instructions

log = logging.getLogger(__name__)


def choose_arithmetic(nbytes: int) -> Arithmetic:
    """Return the implementation for a conversion of `nbytes`; may compile a library, once per user."""
    library = host_library(nbytes)
    try:
        found = _tested(library) if library else None
    except TrtspecError as error:
        log.info("converting weights with numpy: %s", error)
        found = None
    if found is None:
        return NumpyArithmetic()
    log.info("converting weights with %s (%s)", found.library.path, found.instructions.name)
    return found


def _tested(library: KernelLibrary) -> CompiledArithmetic | None:
    """Return a library's arithmetic if it passes the self-test on this machine, which takes 10 ms."""
    if all(check.ok for check in run_self_test(library)):
        return CompiledArithmetic(library, fastest_instructions(library))
    message = "%s failed its self-test on this machine; converting weights with numpy, which is slower"
    log.warning(message, library.path)
    return None
