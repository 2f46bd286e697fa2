# SPDX-License-Identifier: Apache-2.0
"""Command lines for child interpreters isolated from the current directory and the user's site-packages."""

from __future__ import annotations

import json
import os
import sys

from trtspec.core.paths import PACKAGE

_RUN = (
    "import json, runpy, sys; _, path, *sys.argv = sys.argv; "
    "sys.path[:0] = [entry for entry in json.loads(path) if entry not in sys.path]; "
    "runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
)


def isolated_python(module: str, *arguments: str) -> list[str]:
    """Return the equivalent of `python -I -m MODULE ARGUMENTS` whose import path includes trtspec and PYTHONPATH.

    `-I` ignores PYTHONPATH and the current directory, so a checkout that is not installed would not be found. Relative
    entries of PYTHONPATH are dropped, because they depend on the current directory.
    """
    given = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if os.path.isabs(entry)]
    path = json.dumps([*given, str(PACKAGE.parent)])
    return [sys.executable, "-I", "-B", "-X", "utf8", "-c", _RUN, path, module, *arguments]
