# SPDX-License-Identifier: Apache-2.0
"""Unpack a folder of wheels for this Python without using a registry."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

TIMEOUT_S = 120


def install(folder: Path, site: Path) -> str:
    """Unpack each package of `folder` into a new directory `site`; return an error message, or "".

    pip chooses the wheel of a package that fits this Python. Dependencies are not resolved: they must be in the folder
    or installed on the machine.
    """
    shutil.rmtree(site, ignore_errors=True)
    names = sorted({path.name.split("-")[0] for path in folder.glob("*.whl")})
    if not names:
        return f"{folder} does not contain wheels"
    options = ("--no-index", "--no-deps", "--no-compile", "--disable-pip-version-check", "--quiet")
    where = ("--find-links", str(folder), "--target", str(site))
    command = [sys.executable, "-m", "pip", "install", *options, *where, *names]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"pip did not unpack {folder} within {TIMEOUT_S} s"
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or [f"exit code {done.returncode}"]
        return f"pip did not unpack {folder}: {said[-1]}"
    return ""
