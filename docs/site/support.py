# SPDX-License-Identifier: Apache-2.0
"""Which methods run on which engines, and how that was tested."""

from __future__ import annotations

from trtspec.backends.base import Backend, backends
from trtspec.core.registry import extension_names

LEGEND = {
    "run": "its text was compared on the real engine",
    "parsed": "the engine's own parser accepts its arguments",
    "planned": "built from upstream's documents; has not met the engine",
}


def evidence(backend: Backend, method: str) -> str:
    """Return a key of LEGEND, or "" if the backend does not support the method."""
    if method not in backend.methods():
        return ""
    return (
        "run" if backend.in_process or method in backend.runs else "parsed" if method in backend.parses else "planned"
    )


def support_table() -> str:
    """Return the Markdown table of methods and engines, without `none`."""
    known = dict(sorted(backends().items(), key=lambda item: (not item[1].in_process, item[0])))
    methods = [
        name for name in extension_names("trtspec.methods") if any(name in each.methods() for each in known.values())
    ]
    rows = [["method", *(f"`{name}`" for name in known)], ["---"] * (len(known) + 1)]
    for method in methods:
        if method != "none":
            rows.append([f"`{method}`", *(evidence(backend, method) for backend in known.values())])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)
