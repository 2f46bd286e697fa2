# SPDX-License-Identifier: Apache-2.0
"""Asks this machine which versions trtllm-build's interpreter has."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

from trtspec.errors import TrtspecError
from trtspec.system import ask_program

MOST_SCRIPT_BYTES = 4096

# TensorRT's wheels are named after CUDA's version too.
_PROBE = """
import json
from importlib import metadata
def version(*names):
    return next((each.version for name in names for each in metadata.distributions(name=name)), None)
tensorrt = version("tensorrt", "tensorrt_cu13", "tensorrt_cu12")
print(json.dumps({"tensorrt_llm": version("tensorrt_llm"), "tensorrt": tensorrt}))
"""


def installed_versions(builder: Path) -> tuple[str | None, str | None]:
    """Return the versions of (TensorRT-LLM, TensorRT) that a console script runs with, None for what is not there."""
    # from the root directory: an interpreter looks for modules where it is started
    said = ask_program([*_interpreter(builder), "-c", _PROBE], str(builder), "reinstall it", cwd="/")
    try:
        found = json.loads(said)
        return found["tensorrt_llm"], found["tensorrt"]
    except (ValueError, KeyError, TypeError):
        raise TrtspecError(f"its interpreter says {said[:80]!r}, no versions", where=str(builder)) from None


def _interpreter(script: Path) -> list[str]:
    """Return the interpreter in a script's first line, or in its second, where pip puts a path that is too long."""
    with script.open("rb") as file:
        lines = file.read(MOST_SCRIPT_BYTES).decode(errors="replace").splitlines()
    words = lines[0][2:].split() if lines and lines[0].startswith("#!") else []
    if words == ["/bin/sh"] and len(lines) > 1 and (found := re.match(r"'''exec' (.+) \"\$0\"", lines[1])):
        words = shlex.split(found[1])
    if not words or "python" not in words[-1]:
        raise TrtspecError("not a Python program, as TensorRT-LLM's is", where=str(script), hint="look at PATH")
    return words
