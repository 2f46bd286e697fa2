# SPDX-License-Identifier: Apache-2.0
"""The largest memory of a process that pushes or pulls."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

from tests.store.registries.artifacts import TARGET, seal

MIB = 1 << 20
MAX_BYTES = 64 * MIB
# The largest resident memory in KiB. ru_maxrss would include the process that starts this one, here pytest.
PEAK = "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM:')))"


def large_artifact(root: Path, mib: int) -> Path:
    """Write an artifact of one file, of which most is zeros, which take no space."""
    (root / TARGET).parent.mkdir(parents=True)
    with (root / TARGET).open("wb") as file:
        file.truncate(mib * MIB)
        file.write(random.Random(mib).randbytes(MIB))
    return seal(root, [TARGET])


def check_memory(artifact: Path, address: str, out: Path) -> None:
    """Push an artifact and pull it, each in a new process of at most MAX_BYTES."""
    assert peak_bytes(f"trtspec.push({str(artifact)!r}, {address!r})") <= MAX_BYTES
    assert peak_bytes(f"trtspec.pull({address!r}, out={str(out)!r})") <= MAX_BYTES


def peak_bytes(code: str) -> int:
    """Return the largest memory of a process that runs code of the Python API."""
    script = f"import trtspec, trtspec.cli.app\n{code}\n{PEAK}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=True)
    return int(done.stdout.split()[-1]) * 1024
