# SPDX-License-Identifier: Apache-2.0
"""Commands for a fresh interpreter that is isolated from the current directory and the user's site-packages."""

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
    """Return a command like `python -I -m MODULE ARGUMENTS` that finds packages where this process does.

    `-I` ignores PYTHONPATH, and a checkout that was not installed is found by the current directory only. Both are
    added to the child's path; relative entries are not, because they depend on the current directory.
    """
    given = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if os.path.isabs(entry)]
    path = json.dumps([*given, str(PACKAGE.parent)])
    return [sys.executable, "-I", "-B", "-X", "utf8", "-c", _RUN, path, module, *arguments]
