# SPDX-License-Identifier: Apache-2.0
"""Parse the phases and the version from the output of trtllm-build.

The messages are from NVIDIA/TensorRT-LLM:tensorrt_llm/builder.py@008b2b8d, tensorrt_llm/_common.py and __init__.py.
"""

from __future__ import annotations

import re

_VERSION = re.compile(r"TensorRT[- ]LLM version: (\S+)")
_PHASES = (
    (re.compile(r"Total time of constructing network"), "network constructed"),
    (re.compile(r"Build TensorRT engine "), "TensorRT is building"),
    (re.compile(r"Serializing engine to "), "writing the engine"),
)


class BuildPhases:
    """Tracks the phases of a build of several ranks, line by line."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._begun = [0] * len(_PHASES)

    def read(self, line: str) -> str | None:
        """Return a description of the phase that starts with this line, or None."""
        for number, (pattern, words) in enumerate(_PHASES):
            if pattern.search(line):
                self._begun[number] += 1
                return f"rank {self._begun[number]} of {self._ranks}: {words}"
        return None


def parse_version(line: str) -> str | None:
    """Return TensorRT-LLM's version if the line contains it; it is in the first line."""
    found = _VERSION.search(line)
    return found[1] if found else None
