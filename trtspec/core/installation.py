# SPDX-License-Identifier: Apache-2.0
"""The installed trtspec and the packages it uses: versions, and results of the checks of `trtspec doctor`."""

from __future__ import annotations

from dataclasses import dataclass

__version__ = "0.2.0"


def installed_version(package: str | None) -> str:
    """Return the version of an installed Python package; "" if it is not installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package) if package else ""
    except PackageNotFoundError:
        return ""


@dataclass(frozen=True)
class DoctorCheck:
    """One requirement of a build, a measurement or a deployment on this machine, and whether it is met."""

    name: str
    ok: bool
    detail: str
    hint: str | None = None


def check_package(package: str, hint: str) -> DoctorCheck:
    """Check whether a Python package is installed; `hint` describes how to install it."""
    version = installed_version(package)
    return DoctorCheck(package, bool(version), version or "not installed", None if version else hint)
