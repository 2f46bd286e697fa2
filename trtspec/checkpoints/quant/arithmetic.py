# SPDX-License-Identifier: Apache-2.0
"""Which code computes a conversion: the compiled library where it pays and can be had, else numpy.

It is chosen once, before anything is converted, and changes the time alone: outputs are the same bytes.
"""

from __future__ import annotations

import logging

from trtspec.checkpoints.arithmetic import Arithmetic, NumpyArithmetic
from trtspec.checkpoints.quant.selftest import run_self_test
from trtspec.core.errors import TrtspecError
from trtspec.kernels.autoload import host_library
from trtspec.kernels.bindings import KernelLibrary
from trtspec.kernels.quantize import CompiledArithmetic, fastest_of

log = logging.getLogger(__name__)


def choose_arithmetic(nbytes: int) -> Arithmetic:
    """Return what computes a conversion of so many bytes; may compile a library, once for a machine's user."""
    library = host_library(nbytes)
    try:
        found = _tested(library) if library else None
    except TrtspecError as error:
        log.info("weights are converted in numpy: %s", error)
        found = None
    if found is None:
        return NumpyArithmetic()
    log.info("weights are converted by %s (%s)", found.library.path, found.instructions.name)
    return found


def _tested(library: KernelLibrary) -> CompiledArithmetic | None:
    """Return a library's arithmetic where it says on this machine what numpy says, which takes 10 ms."""
    if all(check.ok for check in run_self_test(library)):
        return CompiledArithmetic(library, fastest_of(library))
    message = "%s: its arithmetic is wrong on this machine; weights are converted in numpy, which is slower"
    log.warning(message, library.path)
    return None
