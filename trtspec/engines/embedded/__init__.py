# SPDX-License-Identifier: Apache-2.0
"""The embedded engine: runs converted TensorRT-LLM checkpoints in torch, on any machine.

Import from `engine` (loads torch) and `request` (plain values); this module stays light, because planning looks here.
"""

import os

from trtspec.engines.base import Backend
from trtspec.engines.embedded.memory import memory
from trtspec.engines.embedded.objections import objections

# How long OpenMP's workers spin between operations before they sleep, read when torch is loaded. By default some
# milliseconds: beside one other busy process on two cores a step then takes 15 times as long. Shorter than this,
# workers sleep between the operations of one step and every step pays (docs/log.md).
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

BACKEND = Backend(
    summary="torch on this machine's CPU or GPU",
    package=None,
    memory=memory,
    keeps_windows=True,
    objections=objections,
)
