# SPDX-License-Identifier: Apache-2.0
"""Which code computes a conversion: the compiled library where it pays and can be had, else numpy.

It is chosen once, before anything is converted, and changes the time alone: outputs are the same bytes.
"""

from __future__ import annotations

import logging

from trtspec.checkpoint.arithmetic import Arithmetic, NumpyArithmetic
from trtspec.errors import TrtspecError
from trtspec.kernels.quantize import load_arithmetic

log = logging.getLogger(__name__)

# What numpy has done before a library is found, or compiled, which takes some three seconds, once.
WORTH_BYTES = 512 << 20
COMPILE_S = 60


def choose_arithmetic(nbytes: int) -> Arithmetic:
    """Return what computes a conversion of so many bytes; compiles at most `COMPILE_S`, once for a machine's user."""
    if nbytes < WORTH_BYTES:
        return NumpyArithmetic()
    try:
        found = load_arithmetic(COMPILE_S)
    except (TrtspecError, OSError) as error:
        log.info("weights are converted in numpy, which is slower and says the same: %s", error)
        return NumpyArithmetic()
    log.info("weights are converted by %s (%s)", found.library.path, found.instructions.name)
    return found
