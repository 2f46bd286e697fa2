# SPDX-License-Identifier: Apache-2.0
"""Find the package versions in a console script's interpreter without running the script."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from trtspec.core.errors import TrtspecError
from trtspec.core.processes import program_output

MOST_SCRIPT_BYTES = 4096

_PROBE = """
import json, sys
from importlib import metadata
def version(names):
    return next((each.version for name in names for each in metadata.distributions(name=name)), None)
print(json.dumps({key: version(names) for key, names in json.loads(sys.argv[1]).items()}))
"""


def script_versions(script: Path, names: Mapping[str, Sequence[str]]) -> dict[str, str | None]:
    """Return versions by key, None for packages that are not installed.

    `names` are the possible distribution names of each key. Raise TrtspecError if the script is not a Python program or
    its interpreter fails.
    """
    # from the root directory, because an interpreter also imports modules from its working directory
    command = [*find_interpreter(script), "-c", _PROBE, json.dumps(dict(names))]
    output = program_output(command, str(script), "reinstall it", cwd="/")
    try:
        found = json.loads(output)
        return {key: found[key] for key in names}
    except (ValueError, KeyError, TypeError):
        raise TrtspecError(f"its interpreter printed {output[:80]!r}, not versions", where=str(script)) from None


def find_interpreter(script: Path) -> list[str]:
    """Return the interpreter in a script's first line, or in its second, where pip writes a path that is too long."""
    with script.open("rb") as file:
        lines = file.read(MOST_SCRIPT_BYTES).decode(errors="replace").splitlines()
    words = lines[0][2:].split() if lines and lines[0].startswith("#!") else []
    if words == ["/bin/sh"] and len(lines) > 1 and (found := re.match(r"'''exec' (.+) \"\$0\"", lines[1])):
        words = shlex.split(found[1])
    if not words or "python" not in words[-1]:
        raise TrtspecError("not a Python program", where=str(script), hint="check PATH")
    return words
