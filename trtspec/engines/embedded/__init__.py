# SPDX-License-Identifier: Apache-2.0
"""The embedded engine: runs converted TensorRT-LLM checkpoints in torch, on any machine.

Import from `engine` (loads torch) and `request` (plain values); this module stays light, because planning looks here.
"""

from trtspec.engines.base import Backend

BACKEND = Backend(summary="torch on this machine's CPU or GPU", package=None)
