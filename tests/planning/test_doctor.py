# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import shutil
from importlib import metadata
from pathlib import Path

import pytest

from tests.conftest import Run
from trtspec.core.installation import DoctorCheck
from trtspec.core.paths import wheel_kernels_dir
from trtspec.kernels import build
from trtspec.planning import doctor


@pytest.fixture(autouse=True)
def server(monkeypatch: pytest.MonkeyPatch, workplace: Path) -> None:
    """Disable the probe of a real server, which tests/serving/triton covers."""
    monkeypatch.setattr(doctor, "probe_server", lambda: [DoctorCheck("tritonserver", True, "one")])


def findings() -> dict[str, DoctorCheck]:
    return {finding.name: finding for finding in doctor.probe_machine()}


def test_missing_package_has_an_install_hint(trtspec: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    version = metadata.version

    def without_torch(name: str) -> str:
        if name == "torch":
            raise metadata.PackageNotFoundError
        return version(name)

    assert findings()["torch"].ok
    monkeypatch.setattr(metadata, "version", without_torch)
    assert findings()["torch"] == DoctorCheck("torch", False, "not installed", "pip install 'trtspec[embedded]'")
    assert findings()["tensorrt-llm"].ok  # it is optional
    shown = trtspec("doctor")
    assert shown.code == 1
    assert shown.err == ""
    assert shown.out.endswith("torch: pip install 'trtspec[embedded]'\nmissing: torch\n")


def test_unsupported_python_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    assert findings()["python"].ok
    monkeypatch.setattr(doctor, "version_problem", lambda: "Python 3.99: 3.10 to 3.13 are supported on this machine")
    assert findings()["python"].hint == "Python 3.99: 3.10 to 3.13 are supported on this machine"
    assert not findings()["python"].ok


def test_conversions_report_their_implementation(monkeypatch: pytest.MonkeyPatch) -> None:
    def found() -> str:
        return findings()["conversions"].detail

    monkeypatch.setattr(build, "_output", lambda *command: "g++ 12\n")
    monkeypatch.setattr(shutil, "which", lambda name: "/bin/g++" if name == "g++" else None)
    assert found() == "numpy, until /bin/g++ compiles them for the first large one"
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert found() == "numpy, which is slower: no C++ compiler on the PATH (g++ or clang++)"
    made = [Path("broken.so"), Path("there.so"), wheel_kernels_dir() / "libtrtspec.so"]
    monkeypatch.setattr(build, "find_libraries", lambda names=(): made if "quantize" in names else [])
    monkeypatch.setattr(build, "loads", lambda path: path.name != "broken.so")
    assert found() == "there.so, compiled on this machine"
    del made[1]
    assert found() == f"{made[1]}, from the wheel"


def test_nearly_full_disk_is_reported(monkeypatch: pytest.MonkeyPatch, workplace: Path) -> None:
    free = doctor.LEAST_FREE_BYTES
    usage = shutil.disk_usage(workplace)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=free))
    assert findings()["cache"] == DoctorCheck(
        "cache", True, f"{workplace}/cache, 2.0 GiB free", "free disk space, or set TRTSPEC_CACHE to another disk"
    )
    free -= 1
    assert not findings()["cache"].ok
    assert not (workplace / "cache").exists()  # probing changes nothing


def test_kernels_report_the_library_or_torch(
    monkeypatch: pytest.MonkeyPatch, workplace: Path, kernel_library: Path
) -> None:
    assert findings()["kernels"] == DoctorCheck(
        "kernels", True, "not compiled; torch verifies drafts (trtspec plugins build)"
    )
    monkeypatch.setenv("TRTSPEC_CACHE", str(kernel_library.parents[2]))
    assert findings()["kernels"] == DoctorCheck("kernels", True, f"{kernel_library}, compiled on this machine")
