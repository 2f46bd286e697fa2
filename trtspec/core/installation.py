# SPDX-License-Identifier: Apache-2.0
"""Version of trtspec, versions of installed packages, and the result type of the checks of `trtspec doctor`."""

from __future__ import annotations

from dataclasses import dataclass

__version__ = "0.2.0"


def installed_version(package: str | None) -> str:
    """Return the version of an installed Python package; "" if the package is not installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package) if package else ""
    except PackageNotFoundError:
        return ""


@dataclass(frozen=True)
class DoctorCheck:
    """Result of checking one requirement of a build, measurement or deployment on this machine."""

    name: str
    ok: bool
    detail: str
    hint: str | None = None


def check_package(package: str, hint: str) -> DoctorCheck:
    """Check that a Python package is installed; `hint` describes how to install it."""
    version = installed_version(package)
    return DoctorCheck(package, bool(version), version or "not installed", None if version else hint)
