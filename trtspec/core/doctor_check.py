# SPDX-License-Identifier: Apache-2.0
"""Results of the checks of `trtspec doctor`."""

from __future__ import annotations

from dataclasses import dataclass

from trtspec.core.processes import installed_version


@dataclass(frozen=True)
class Probe:
    """One requirement of a build, a measurement or a deployment on this machine, and whether it is met."""

    name: str
    ok: bool
    detail: str
    hint: str | None = None


def probe_package(package: str, hint: str) -> Probe:
    """Check whether a Python package is installed; `hint` describes how to install it."""
    version = installed_version(package)
    return Probe(package, bool(version), version or "not installed", None if version else hint)
