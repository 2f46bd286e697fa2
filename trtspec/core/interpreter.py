# SPDX-License-Identifier: Apache-2.0
"""Checks that the Python interpreter meets the requirements of trtspec and of Triton's Python stub.

Uses only the standard library: `make setup` runs this file with the selected Python before it installs anything, so an
unsuitable interpreter is rejected early.
"""

from __future__ import annotations

import importlib.util
import platform
import sys
import sysconfig
from pathlib import Path

OLDEST = (3, 10)
NEWEST = (3, 13) if platform.machine() == "x86_64" else (3, 12)  # versions for which nvidia-pytriton has a working stub
VERSION = "{}.{}".format(*sys.version_info)
ANOTHER = "use another Python: make setup PYTHON=python3.12"


def libpython_name() -> str:
    """Return the file name of this interpreter's shared library."""
    return str(sysconfig.get_config_var("INSTSONAME") or f"libpython{VERSION}.so.1.0").replace(".a", ".so.1.0")


def libpython() -> Path | None:
    """Return the path of this interpreter's shared library, or None if it is not found.

    Distributions may install the library outside LIBDIR.
    """
    multiarch = sysconfig.get_config_var("MULTIARCH") or ""
    built = Path(sysconfig.get_config_var("LIBDIR") or "/usr/lib")
    folders = [built, Path(sys.base_prefix) / "lib", built / multiarch, Path("/usr/lib") / multiarch]
    return next((folder / libpython_name() for folder in folders if (folder / libpython_name()).is_file()), None)


def version_problem() -> str | None:
    """Return a message if this Python version is unsupported, else None."""
    fits = OLDEST <= sys.version_info[:2] <= NEWEST
    return None if fits else f"Python {VERSION}: 3.{OLDEST[1]} to 3.{NEWEST[1]} are supported on this machine"


def interpreter_problems() -> list[tuple[str, str]]:
    """Return the interpreter's unmet requirements for `make setup` as pairs of problem and remedy."""
    found = []
    fault = version_problem()
    if fault:
        found.append((fault, ANOTHER))
    if platform.system() != "Linux":
        found.append(
            (f"{platform.system()}: tritonserver, which the tests use, runs on Linux only", "use Linux or a container")
        )
    if importlib.util.find_spec("ensurepip") is None:
        found.append(
            ("no ensurepip, which virtual environments require", f"install python{VERSION}-venv, or {ANOTHER}")
        )
    if libpython() is None:
        remedy = f"install libpython{VERSION} (Debian's name), or {ANOTHER}"
        found.append((f"no {libpython_name()}: Triton's Python stub loads it", remedy))
    return found


if __name__ == "__main__":
    for fault, remedy in interpreter_problems():
        sys.stderr.write(f"{sys.executable}: {fault}\n  {remedy}\n")
    sys.exit(1 if interpreter_problems() else 0)
