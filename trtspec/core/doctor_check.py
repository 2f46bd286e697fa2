# SPDX-License-Identifier: Apache-2.0
"""What `doctor` says of one thing that this machine should have."""

from __future__ import annotations

from dataclasses import dataclass

from trtspec.core.processes import installed_version


@dataclass(frozen=True)
class Probe:
    """One thing a build, a measurement or a deployment needs here, and whether it is there."""

    name: str
    ok: bool
    detail: str
    hint: str | None = None


def probe_package(package: str, hint: str) -> Probe:
    """Return whether a Python package is installed; `hint` says how to install it."""
    version = installed_version(package)
    return Probe(package, bool(version), version or "not installed", None if version else hint)
