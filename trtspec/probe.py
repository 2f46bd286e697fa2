# SPDX-License-Identifier: Apache-2.0
"""What `doctor` says of one thing that this machine should have."""

from __future__ import annotations

from dataclasses import dataclass

from trtspec.system import installed_version


@dataclass(frozen=True)
class Probe:
    """One thing a build, a measurement or a deployment needs here, and whether it is there."""

    name: str
    ok: bool
    detail: str
    hint: str | None = None


def probe_package(package: str, extra: str) -> Probe:
    """Return whether a Python package is installed, and the extra of trtspec that brings it."""
    version = installed_version(package)
    hint = None if version else f"pip install 'trtspec[{extra}]'"
    return Probe(package, bool(version), version or "not installed", hint)
