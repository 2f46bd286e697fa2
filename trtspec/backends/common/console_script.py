# SPDX-License-Identifier: Apache-2.0
"""Which versions the interpreter of a console script has; the script itself is not run."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from trtspec.core.errors import TrtspecError
from trtspec.core.processes import ask_program

MOST_SCRIPT_BYTES = 4096

_PROBE = """
import json, sys
from importlib import metadata
def version(names):
    return next((each.version for name in names for each in metadata.distributions(name=name)), None)
print(json.dumps({key: version(names) for key, names in json.loads(sys.argv[1]).items()}))
"""


def script_versions(script: Path, names: Mapping[str, Sequence[str]]) -> dict[str, str | None]:
    """Return versions by key, None for what is not there; `names` are those that a distribution may have.

    Raises TrtspecError for what is no Python program or does not answer.
    """
    # from the root directory: an interpreter looks for modules where it is started
    command = [*interpreter_of(script), "-c", _PROBE, json.dumps(dict(names))]
    said = ask_program(command, str(script), "reinstall it", cwd="/")
    try:
        found = json.loads(said)
        return {key: found[key] for key in names}
    except (ValueError, KeyError, TypeError):
        raise TrtspecError(f"its interpreter says {said[:80]!r}, no versions", where=str(script)) from None


def interpreter_of(script: Path) -> list[str]:
    """Return the interpreter in a script's first line, or in its second, where pip puts a path that is too long."""
    with script.open("rb") as file:
        lines = file.read(MOST_SCRIPT_BYTES).decode(errors="replace").splitlines()
    words = lines[0][2:].split() if lines and lines[0].startswith("#!") else []
    if words == ["/bin/sh"] and len(lines) > 1 and (found := re.match(r"'''exec' (.+) \"\$0\"", lines[1])):
        words = shlex.split(found[1])
    if not words or "python" not in words[-1]:
        raise TrtspecError("not a Python program", where=str(script), hint="look at PATH")
    return words
