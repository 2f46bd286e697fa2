# SPDX-License-Identifier: Apache-2.0
"""Cache of compilations by command and sources, in the user's cache and shared by all clones."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path

from trtspec.kernels import build

ROOT = Path(__file__).parents[2]
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trtspec-tests"
KEPT = CACHE / "compiled"
KEPT_S = 30 * 24 * 3600  # since the last use
FOLDERS = (ROOT / "plugins", ROOT / "tests" / "plugins")
READ = {".h", ".cuh", ".cpp", ".cu", ".o"}
TIMEOUT_S = 500


def compile_once(command: Sequence[str | Path], folder: Path) -> None:
    """Run a compiler in a folder, or restore its earlier output for equal sources; AssertionError if it fails.

    The output path follows `-o`. The output depends on the command and on sources of this repository and the folder.
    """
    output = folder / command[list(command).index("-o") + 1]
    kept = KEPT / key_of([str(word).replace(str(folder), ".").replace(str(ROOT), "...") for word in command], folder)
    if not kept.exists():
        made = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
        assert made.returncode == 0, made.stderr
        keep(output, kept)
    os.utime(kept)
    shutil.copy(kept, output)


def run_build(command: Sequence[str], timeout_s: float, run: Callable[..., None] = build._run) -> None:
    """Replace `trtspec.kernels.build._run`: objects shared by several libraries are compiled once."""
    if "-c" not in command:
        return run(tuple(command), timeout_s)
    made = Path(command[list(command).index("-o") + 1])
    with tempfile.TemporaryDirectory() as folder:
        compile_once([made.name if word == str(made) else word for word in command], Path(folder))
        shutil.copy(Path(folder, made.name), made)
    return None


def keep(made: Path, kept: Path) -> None:
    """Copy a file into the cache atomically, and remove files that were not used for long."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    for old in [path for path in kept.parent.iterdir() if path.stat().st_mtime < time.time() - KEPT_S]:
        old.unlink(missing_ok=True)
    part = kept.with_name(f"{kept.name}.{os.getpid()}")
    shutil.copy(made, part)
    part.replace(kept)


def key_of(words: Sequence[str], folder: Path) -> str:
    """Return the cache key of a compilation."""
    known = hashlib.sha256("\0".join([version(words[0]), *words]).encode())
    for path in sources((*FOLDERS, folder)):
        known.update(b"\0".join([path.name.encode(), path.read_bytes()]))
    return known.hexdigest()


def sources(folders: Sequence[Path]) -> Iterator[Path]:
    """Yield the files that may be compiled or included, sorted."""
    for folder in folders:
        yield from sorted(path for path in folder.rglob("*") if path.suffix in READ and path.is_file())


@cache
def version(compiler: str) -> str:
    """Return a compiler's version output."""
    return subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True, timeout=60).stdout
