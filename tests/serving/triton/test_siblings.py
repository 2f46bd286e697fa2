# SPDX-License-Identifier: Apache-2.0
"""A stopped stub is killed, and no other process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from trtspec.core.processes import process_state, wait_until
from trtspec.serving.triton.python_models import bls
from trtspec.serving.triton.python_models.bls import kill_stopped


def test_only_a_stopped_stub_of_the_same_model_and_server_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "triton_python_backend_stub" / "draft" / "1"
    stub = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)", str(place)])
    try:
        monkeypatch.setattr(bls.os, "getppid", os.getpid)
        assert kill_stopped("draft") == []
        os.kill(stub.pid, signal.SIGSTOP)
        assert wait_until(lambda: process_state(stub.pid) == "T", 10)
        assert kill_stopped("target") == []
        monkeypatch.setattr(bls.os, "getppid", lambda: 1)
        assert kill_stopped("draft") == []
        assert process_state(stub.pid) == "T"
        monkeypatch.setattr(bls.os, "getppid", os.getpid)
        assert kill_stopped("draft") == [stub.pid]
        assert stub.wait(10) == -signal.SIGKILL
    finally:
        stub.kill()
        stub.wait(10)
