# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import signal
import subprocess
import sys

import pytest

CODE = """
from trtspec.core.files import failpoint
try:
    failpoint("here")
finally:
    print("cleaned up")
"""


@pytest.mark.parametrize(("asked", "said"), [("here", b""), ("there", b"cleaned up\n"), ("", b"cleaned up\n")])
def test_only_the_named_failpoint_kills_without_cleanup(asked: str, said: bytes) -> None:
    command = [sys.executable, "-c", CODE]
    done = subprocess.run(command, env={"TRTSPEC_FAILPOINT": asked}, capture_output=True, check=False, timeout=300)
    assert done.stdout == said
    assert done.returncode == (0 if said else -signal.SIGKILL)
