# SPDX-License-Identifier: Apache-2.0
"""npm packages for tests: the versions in a folder's package-lock.json, installed outside the tree.

`python -m tests._support.npm FOLDER ...` installs the packages of folders; tests do so on demand.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

PINNED = ("package.json", "package-lock.json")
INSTALL_S = 180
QUIETLY = ("--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
BRIEFLY = ("--fetch-retries=1", "--fetch-retry-mintimeout=1000")


class Unavailable(Exception):
    """The packages are not available on this machine; the message is the reason."""


def modules(folder: Path) -> Path:
    """Return `node_modules` of a folder, installing it if necessary; raises Unavailable with the reason."""
    root = _cached(folder)
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            raise Unavailable(f"{program} is not installed")
    root.mkdir(parents=True, exist_ok=True)
    with (root / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other workers wait
        if not (root / "installed").exists():
            _install(folder, root)
    return root / "node_modules"


def _cached(folder: Path) -> Path:
    """Return the installation directory for a lock file."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    digest = hashlib.sha256((folder / "package-lock.json").read_bytes()).hexdigest()
    return base / "trtspec-tests" / f"npm-{folder.name}-{digest[:12]}"


def _install(folder: Path, root: Path) -> None:
    for name in PINNED:
        shutil.copy(folder / name, root)
    try:
        done = subprocess.run(
            ["npm", "ci", *QUIETLY, *BRIEFLY], cwd=root, capture_output=True, text=True, timeout=INSTALL_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"npm did not install what {folder.name} pins in {INSTALL_S} s") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise Unavailable(f"npm cannot install what {folder.name} pins: {lines[0] if lines else done.returncode}")
    (root / "installed").touch()


if __name__ == "__main__":
    for name in sys.argv[1:]:
        try:
            sys.stdout.write(f"{modules(Path(name))}\n")
        except Unavailable as error:
            sys.stdout.write(f"tests of {name} will be skipped: {error}\n")
