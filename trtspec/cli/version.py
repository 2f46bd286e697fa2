# SPDX-License-Identifier: Apache-2.0
"""`trtspec version`: show the versions of trtspec and Python, and the platform."""

from __future__ import annotations

import platform

from trtspec.cli.options import Json
from trtspec.cli.render import print_line, print_result
from trtspec.core.installation import __version__


def version(json: Json = False) -> None:
    """Show the versions of trtspec and Python, and the platform.

    Example: trtspec version --json
    """
    python, system = platform.python_version(), f"{platform.system()} {platform.machine()}"
    document = {"format_version": 1, "trtspec": __version__, "python": python, "platform": system}
    print_result(document, lambda: print_line(f"trtspec {__version__}, Python {python} on {system}"), as_json=json)


panel = "Machine"
command = version
