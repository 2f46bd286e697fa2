# SPDX-License-Identifier: Apache-2.0
"""Finding a tritonserver, its options, and the errors for missing parts."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest

from trtspec.core.errors import DeployError
from trtspec.core.hashing import file_sha256
from trtspec.core.installation import DoctorCheck
from trtspec.serving.triton import server as server_module
from trtspec.serving.triton.server import ServerPorts, TritonServer, find_server, probe_server, server_command


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch) -> Path:
    """A fake tritonserver directory of the wheel, and a separate cache."""
    root = tmp_path / "site-packages" / "pytriton" / "tritonserver"
    for name in ("bin/tritonserver", "backends/python/libtriton_python.so", "backends/python/utils.py"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    stub = root / "python_backend_stubs" / server_module.PYTHON / server_module.STUB
    stub.parent.mkdir(parents=True)
    stub.write_text("stub")
    monkeypatch.setattr(server_module, "_wheel", lambda: server_module.PytritonWheel(root, "0.7.0"))
    monkeypatch.setattr(server_module, "libpython", lambda: tmp_path / "lib" / "libpython.so")
    monkeypatch.setattr(server_module, "_numpy_2", lambda: False)
    monkeypatch.setenv("TRTSPEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.delenv(server_module.VARIABLE, raising=False)
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    return root


def executable(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_server_lookup_prefers_the_variable_then_path_then_the_wheel(wheel: Path, tmp_path: Path, monkeypatch) -> None:
    assert find_server().executable == wheel / "bin" / "tritonserver"
    on_path = executable(tmp_path / "empty" / "tritonserver")
    assert (find_server().executable, find_server().source) == (on_path, "PATH")
    named = executable(tmp_path / "named")
    monkeypatch.setenv(server_module.VARIABLE, str(named))
    assert (find_server().executable, find_server().backends) == (named, None)
    monkeypatch.setenv(server_module.VARIABLE, str(tmp_path))
    with pytest.raises(DeployError, match="not an executable file") as caught:
        find_server()
    assert caught.value.where == f"TRTSPEC_TRITONSERVER={tmp_path}"


def test_missing_server_error_has_an_installation_hint(wheel: Path, monkeypatch) -> None:
    monkeypatch.setattr(server_module, "_wheel", lambda: None)
    with pytest.raises(DeployError, match="tritonserver is not installed") as caught:
        find_server()
    assert caught.value.hint == f"{server_module.INSTALL_WHEEL}, or set TRTSPEC_TRITONSERVER to a tritonserver"
    assert probe_server() == [
        DoctorCheck("tritonserver", False, "tritonserver is not installed", server_module.INSTALL_HINT)
    ]


def test_wheel_backends_are_linked_without_changing_the_wheel(wheel: Path, tmp_path: Path) -> None:
    before = sorted(wheel.rglob("*"))
    server = find_server()
    links = {path.name: path.resolve() for path in (server.backends / "python").iterdir()}
    assert links == {
        "libtriton_python.so": wheel / "backends/python/libtriton_python.so",
        "utils.py": wheel / "backends/python/utils.py",
        server_module.STUB: wheel / "python_backend_stubs" / server_module.PYTHON / server_module.STUB,
    }
    assert server.backends.is_relative_to(tmp_path / "cache" / "triton")
    assert sorted(wheel.rglob("*")) == before
    libraries = server.environment["LD_LIBRARY_PATH"].split(":")
    ours, theirs, python = server.backends / "python", tmp_path / "site-packages/nvidia_pytriton.libs", tmp_path / "lib"
    assert libraries == [str(folder) for folder in (ours, theirs, python)]
    assert server.environment["PATH"].split(":")[0] == str(Path(sys.executable).parent)


def test_concurrent_lookups_create_one_backend_directory(wheel: Path, tmp_path: Path) -> None:
    found: list[Path | None] = []
    threads = [threading.Thread(target=lambda: found.append(find_server().backends)) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(found) == 16
    assert list((tmp_path / "cache" / "triton").iterdir()) == [found[0]]
    assert set(found) == {found[0]}


def test_unwritable_cache_is_an_error_and_a_doctor_finding(wheel: Path, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TRTSPEC_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(DeployError, match="file/cache/triton: cannot be written: Not a directory"):
        find_server()
    finding = probe_server()[0]
    hint = "set TRTSPEC_CACHE to a writable directory"
    assert finding == DoctorCheck("tritonserver", False, "cannot be written: Not a directory", hint)


def test_python_without_stub_or_shared_library_is_an_error_with_a_hint(wheel: Path, monkeypatch) -> None:
    monkeypatch.setattr(server_module, "libpython", lambda: None)
    with pytest.raises(DeployError, match=r"cannot run Python models here: libpython: libpython.* not found") as caught:
        find_server()
    assert caught.value.hint.endswith("or use a Python built with --enable-shared")
    stubs = wheel / "python_backend_stubs"
    (stubs / server_module.PYTHON).rename(stubs / "2.7")
    with pytest.raises(DeployError, match=f"python stub: none for Python {server_module.PYTHON}") as caught:
        find_server()
    assert caught.value.hint == "use Python 2.7"


@pytest.fixture
def numpy_2(monkeypatch) -> None:
    """A numpy 2; the fixture `wheel` pretends that numpy 1 is installed."""
    monkeypatch.setattr(server_module, "_numpy_2", lambda: True)
    monkeypatch.setattr(server_module.metadata, "version", lambda name: "2.1.0")


def test_numpy_2_with_an_unrecognized_stub_is_a_doctor_finding(wheel: Path, numpy_2: None) -> None:
    server, finding = [finding for finding in probe_server() if not finding.ok]
    assert (finding.name, finding.detail) == ("numpy", "2.1.0 is not below 2")
    assert server.detail.endswith("cannot run Python models here: numpy: 2.1.0 is not below 2")
    assert server.hint == finding.hint == "pip install 'numpy<2': the stub garbles numpy 2 tensors"


def test_numpy_2_uses_a_patched_copy_of_a_recognized_stub(
    wheel: Path, numpy_2: None, tmp_path: Path, monkeypatch
) -> None:
    """The copy differs in the bytes with the offset of an array's item size, and loads this interpreter's library."""
    stub = wheel / "python_backend_stubs" / server_module.PYTHON / server_module.STUB
    stub.write_bytes(bytes(range(64)))
    monkeypatch.setattr(server_module, "LOADS", {file_sha256(stub): (32, 7)})
    bundled = tmp_path / "site-packages" / "nvidia_pytriton.libs" / "libpython3-1.so"
    bundled.parent.mkdir()
    bundled.touch()
    folder = find_server().backends / "python"
    copy = folder / server_module.STUB
    changed = {place: byte for place, byte in enumerate(copy.read_bytes()) if byte != place}
    assert (changed, os.access(copy, os.X_OK), copy.is_symlink()) == ({32: 40, 7: 15}, True, False)
    assert stub.read_bytes() == bytes(range(64))
    assert (folder / bundled.name).readlink() == server_module.libpython()
    assert {finding.name: finding.ok for finding in probe_server()}["numpy"]
    monkeypatch.setattr(server_module, "_numpy_2", lambda: False)
    assert (find_server().backends / "python" / server_module.STUB).readlink() == stub


def test_server_command_binds_to_loopback(tmp_path: Path) -> None:
    server = TritonServer(Path("/s/tritonserver"), "PATH", Path("/b"))
    command = server_command(server, tmp_path, ServerPorts(1, 2, 3), model="ensemble", shm_prefix="x_")
    assert command[:4] == [
        "/s/tritonserver",
        f"--model-repository={tmp_path}",
        "--model-control-mode=explicit",
        "--load-model=ensemble",
    ]
    for name, port in (("http", 1), ("grpc", 2), ("metrics", 3)):
        assert f"--{name}-address=127.0.0.1" in command
        assert f"--{name}-port={port}" in command
    assert "--backend-directory=/b" in command
    assert "--backend-config=python,shm-region-prefix-name=x_" in command
