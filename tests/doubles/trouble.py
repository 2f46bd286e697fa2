# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: T201  the builder's output is parsed
"""Failures of an engine build on demand, named in TRTLLM_DOUBLE_TROUBLE."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

FOREVER_S = 600
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"


def make_trouble(out: Path) -> None:
    """Simulate the failure named in the environment; `out` is the engine's directory."""
    kind, _, argument = os.environ.get("TRTLLM_DOUBLE_TROUBLE", "").partition(" ")
    if kind == "sleep":
        time.sleep(float(argument))
    elif kind == "exit":
        print("[TRT] [E] Error Code 2: OutOfMemory", file=sys.stderr, flush=True)
        sys.exit(int(argument))
    elif kind == "signal":
        os.kill(os.getpid(), int(argument))
    elif kind == "fill":
        with (out / "rank0.engine").open("wb") as file:
            while True:
                file.write(bytes(1 << 16))
    elif kind == "lines":
        for number in range(int(argument)):
            print(f"line {number}")
        sys.exit(1)
    elif kind == "deaf":
        _start_deaf()
    elif kind == "version":
        print(f"[TensorRT-LLM] TensorRT LLM version: {argument}", flush=True)
        time.sleep(FOREVER_S)
    elif kind == "wait-for":
        while not Path(argument).exists():
            time.sleep(0.01)


def _start_deaf() -> None:
    """Ignore SIGTERM, with one child in this session and one in another session."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for in_own_session in (False, True):
        child = subprocess.Popen([sys.executable, "-c", DEAF], start_new_session=in_own_session)
        print(f"child {child.pid}", flush=True)
    print(f"builder {os.getpid()}", flush=True)
    time.sleep(FOREVER_S)
