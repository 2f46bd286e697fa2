# SPDX-License-Identifier: Apache-2.0
"""The largest memory of a process that pushes or pulls."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

from tests.store.registries.artifacts import seal

MIB = 1 << 20
MAX_BYTES = 64 * MIB
# Runs the command line, and prints the largest resident memory in KiB. ru_maxrss would include the process that starts
# this one, here pytest.
COMMAND = """
import sys
from trtspec.cli.app import main
try:
    main(sys.argv[1:])
finally:
    print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM:')))
"""


def large_artifact(root: Path, mib: int, files: int = 1) -> Path:
    """Write an artifact of files of which most is zeros, which take no space."""
    paths = [f"checkpoints/target/rank{number}.safetensors" for number in range(files)]
    (root / paths[0]).parent.mkdir(parents=True)
    for number, path in enumerate(paths):
        with (root / path).open("wb") as file:
            file.truncate(mib * MIB)
            file.write(random.Random(number).randbytes(MIB))
    return seal(root, paths)


def check_memory(artifact: Path, address: str, out: Path) -> None:
    """Push an artifact and pull it by command line, each in a new process of at most MAX_BYTES."""
    assert peak_bytes("push", str(artifact), address) <= MAX_BYTES
    assert peak_bytes("pull", address, "--out", str(out)) <= MAX_BYTES


def peak_bytes(*arguments: str) -> int:
    """Return the largest memory of a successful command."""
    command = [sys.executable, "-c", COMMAND, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    return int(done.stdout.split()[-1]) * 1024
