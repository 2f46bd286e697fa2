# SPDX-License-Identifier: Apache-2.0
"""Named points at which a test can have this process killed, as by `kill -9` or a loss of power."""

from __future__ import annotations

import os
import signal


def failpoint(name: str) -> None:
    """Kill this process without any clean-up where the environment's TRTSPEC_FAILPOINT is `name`."""
    if os.environ.get("TRTSPEC_FAILPOINT") == name:
        os.kill(os.getpid(), signal.SIGKILL)
