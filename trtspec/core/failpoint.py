# SPDX-License-Identifier: Apache-2.0
"""Named points at which a test can kill this process, as `kill -9` or a power loss would."""

from __future__ import annotations

import os
import signal


def failpoint(name: str) -> None:
    """Kill this process without clean-up if the environment variable TRTSPEC_FAILPOINT equals `name`."""
    if os.environ.get("TRTSPEC_FAILPOINT") == name:
        os.kill(os.getpid(), signal.SIGKILL)
