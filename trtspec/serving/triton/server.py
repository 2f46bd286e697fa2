# SPDX-License-Identifier: Apache-2.0
"""Find a tritonserver and build its command line; the server listens on loopback by default.

Search order: `TRTSPEC_TRITONSERVER`, PATH, the nvidia-pytriton wheel. The wheel's Python backend does not have a fixed
place, so a directory of links in the cache replaces an installation.

The wheel's Python stub is patched for numpy 2. It was compiled with pybind11 2.10, which reads an array's item size at
byte 32 of `PyArray_Descr`, its place in numpy 1. numpy 2 stores `elsize` at byte 40, so the stub would garble every
tensor, and numpy 1 does not support Python 3.13. The offset is one byte in five load instructions. They are corrected
in a copy of a stub with a known digest.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from trtspec.core.errors import DeployError
from trtspec.core.hashing import file_sha256
from trtspec.core.installation import DoctorCheck
from trtspec.core.interpreter import VERSION as PYTHON
from trtspec.core.interpreter import libpython, libpython_name
from trtspec.core.paths import cache_dir
from trtspec.core.ports import LOOPBACK
from trtspec.serving.triton.names import SOCKETS

ELSIZE_1, ELSIZE_2 = 32, 40  # offset in numpy 1 and numpy 2
# SHA-256 of a stub: offsets of the bytes to change. `objdump -dC` shows them as `0x20(%rax)` in both constructors of
# PbTensor from an array (two each: strings and all other types) and in pybind11::array's from a dtype, a shape and
# strides.
LOADS = {
    # nvidia-pytriton 0.7.0, x86-64, Python 3.13
    "7b701b4b4bc01ca7af0350eaffa4f2aed92f02b465b3494a265059e4d3ca6cf8": (0xA6C74, 0xA6E90, 0xA7664, 0xA78A9, 0xACA2B)
}
VARIABLE = "TRTSPEC_TRITONSERVER"
WHEEL = "nvidia-pytriton"
STUB = "triton_python_backend_stub"
EXIT_TIMEOUT_S = 10  # default time for requests in flight at shutdown
SHARED_MEMORY = Path("/dev/shm")
# On Python 3.13, pip rejects the wheel because it requires numpy below 2; the wheel itself works there.
INSTALL_WHEEL = "pip install 'trtspec[triton]'" if PYTHON < "3.13" else f"pip install --no-deps {WHEEL}==0.7.0"
INSTALL_HINT = f"{INSTALL_WHEEL}, or set {VARIABLE} to a tritonserver"


@dataclass(frozen=True)
class TritonServer:
    """A tritonserver executable and the settings to start it; `source` names the place where it was found."""

    executable: Path
    source: str
    backends: Path | None = None  # the server's default if None
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ServerPorts:
    """The ports of one server and the address that it listens on.

    With `sockets`, a directory, the server uses Unix sockets there for HTTP and metrics, and a proxy listens on the
    ports.
    """

    http: int
    grpc: int
    metrics: int
    host: str = LOOPBACK
    sockets: str = ""

    def address(self, door: str) -> str:
        """Return the listen address for `door`, a key of SOCKETS: a Unix socket if `sockets` is set, else the host."""
        return f"unix:{self.sockets}/{SOCKETS[door]}" if self.sockets else self.host


def find_server() -> TritonServer:
    """Return the tritonserver to use; raises DeployError with installation instructions if it is missing."""
    if named := os.environ.get(VARIABLE):
        path = Path(named).expanduser().absolute()
        if not (path.is_file() and os.access(path, os.X_OK)):
            hint = "set it to tritonserver's path"
            raise DeployError("not an executable file", where=f"{VARIABLE}={named}", hint=hint)
        return TritonServer(path, f"${VARIABLE}", environment=_environment([]))
    if found := shutil.which("tritonserver"):
        return TritonServer(Path(found), "PATH", environment=_environment([]))
    if wheel := _wheel():
        return wheel.server()
    raise DeployError("tritonserver is not installed", hint=INSTALL_HINT)


def server_command(
    server: TritonServer,
    repository: Path,
    ports: ServerPorts,
    *,
    model: str,
    shm_prefix: str,
    drain_s: int = EXIT_TIMEOUT_S,
) -> list[str]:
    """Return the command line of a server that serves `model` and the models that it is composed of.

    `shm_prefix` is the prefix of the server's shared memory regions. `drain_s` is the time in seconds for requests in
    flight at shutdown.
    """
    command = [
        str(server.executable),
        f"--model-repository={repository}",
        "--model-control-mode=explicit",
        f"--load-model={model}",
        "--disable-auto-complete-config",
        f"--exit-timeout-secs={drain_s}",
        f"--http-address={ports.address('http')}",
        f"--http-port={ports.http}",
        f"--grpc-address={ports.host}",
        f"--grpc-port={ports.grpc}",
        f"--metrics-address={ports.address('metrics')}",
        f"--metrics-port={ports.metrics}",
        f"--backend-config=python,shm-region-prefix-name={shm_prefix}",
    ]
    return [*command, f"--backend-directory={server.backends}"] if server.backends else command


def close_shared_memory(shm_prefix: str) -> None:
    """Deny other users access to the memory that a server shares with its models; it contains prompts and outputs.

    The Python backend makes its regions readable for all users regardless of the umask, because boost resets their
    mode.
    """
    for region in SHARED_MEMORY.glob(f"{shm_prefix}*"):
        with suppress(FileNotFoundError):
            region.chmod(0o600)


def remove_shared_memory(shm_prefix: str) -> None:
    """Remove the shared memory regions that a killed server left behind."""
    for region in SHARED_MEMORY.glob(f"{shm_prefix}*"):
        region.unlink(missing_ok=True)


def probe_server() -> list[DoctorCheck]:
    """Return the checks of this machine's tritonserver, for `trtspec doctor`."""
    wheel = _wheel()
    try:
        server = find_server()
    except DeployError as error:
        found = DoctorCheck("tritonserver", False, error.message, error.hint)
    else:
        found = DoctorCheck("tritonserver", True, f"{server.executable} ({server.source})")
        wheel = wheel if server.backends else None
    return [found, *wheel.checks()] if wheel else [found]


def _environment(libraries: list[Path]) -> dict[str, str]:
    """Return the variables by which the Python stub finds this interpreter and its libraries."""
    environment = {"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])}
    if libraries:
        known = [os.environ["LD_LIBRARY_PATH"]] if os.environ.get("LD_LIBRARY_PATH") else []
        environment["LD_LIBRARY_PATH"] = os.pathsep.join([*map(str, libraries), *known])
    return environment


def _numpy_2() -> bool:
    return not metadata.version("numpy").startswith("1.")


def _wheel() -> PytritonWheel | None:
    """Return the installed nvidia-pytriton wheel without importing it, or None."""
    try:
        wheel = metadata.distribution(WHEEL)
    except metadata.PackageNotFoundError:
        return None
    return PytritonWheel(Path(str(wheel.locate_file("pytriton/tritonserver"))), wheel.version)


@dataclass(frozen=True)
class PytritonWheel:
    """The nvidia-pytriton wheel; `root` is its tritonserver directory."""

    root: Path
    version: str

    @property
    def stub(self) -> Path:
        return self.root / "python_backend_stubs" / PYTHON / STUB

    @property
    def libraries(self) -> Path:
        return self.root.parents[1] / "nvidia_pytriton.libs"

    def server(self) -> TritonServer:
        """Return the wheel's server; raises DeployError if it cannot run Python models here."""
        for need in self.checks():
            if not need.ok:
                raise DeployError(
                    f"the tritonserver of {WHEEL} cannot run Python models here: {need.name}: {need.detail}",
                    hint=need.hint,
                )
        backends, library = self._linked_backends(), libpython()
        environment = _environment([backends / "python", self.libraries, *([library.parent] if library else [])])
        return TritonServer(self.root / "bin" / "tritonserver", f"{WHEEL} {self.version}", backends, environment)

    def checks(self) -> list[DoctorCheck]:
        """Check numpy, the Python stub and libpython, which the wheel's Python backend requires."""
        return [self._check_numpy(), self._check_stub(), _check_libpython()]

    def _check_numpy(self) -> DoctorCheck:
        version = metadata.version("numpy")
        if not _numpy_2():
            return DoctorCheck("numpy", True, version)
        if self.stub.is_file() and file_sha256(self.stub) in LOADS:
            return DoctorCheck("numpy", True, f"{version}, with a patched copy of the stub")
        hint = "pip install 'numpy<2': the stub garbles numpy 2 tensors"
        return DoctorCheck("numpy", False, f"{version} is not below 2", hint)

    def _check_stub(self) -> DoctorCheck:
        if self.stub.is_file():
            return DoctorCheck("python stub", True, f"for Python {PYTHON}")
        known = sorted(path.name for path in (self.root / "python_backend_stubs").glob("*"))
        hint = f"use Python {', '.join(known)}" if known else INSTALL_HINT
        return DoctorCheck("python stub", False, f"none for Python {PYTHON}", hint)

    def _linked_backends(self) -> Path:
        """Return a backend directory with links to the wheel's Python backend and to the stub of this Python version.

        It is built under a temporary name and renamed, so concurrent processes end up with the same directory.
        """
        links = self._links()
        content = "\n".join([f"numpy {_numpy_2()}", *(f"{name} {target}" for name, target in sorted(links.items()))])
        place = cache_dir() / "triton" / hashlib.sha256(content.encode()).hexdigest()[:16]
        if place.is_dir():
            return place
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            fresh = Path(tempfile.mkdtemp(dir=place.parent))
            (fresh / "python").mkdir()
            for name, target in links.items():
                path = fresh / "python" / name
                if name == STUB and _numpy_2():
                    path.write_bytes(patch_for_numpy_2(target))
                    path.chmod(0o755)
                else:
                    path.symlink_to(target)
        except OSError as error:
            raise DeployError(
                f"cannot be written: {error.strerror}",
                where=str(place.parent),
                hint="set TRTSPEC_CACHE to a writable directory",
            ) from None
        try:
            fresh.rename(place)
        except OSError:  # another process created it first
            shutil.rmtree(fresh)
        return place

    def _links(self) -> dict[str, Path]:
        """Return the links in the Python backend's directory, as targets by name."""
        links = {path.name: path for path in (self.root / "backends" / "python").iterdir() if path.is_file()}
        library = libpython()
        if _numpy_2() and library:  # use this interpreter's libpython instead of the wheel's
            links |= {path.name: library for path in self.libraries.glob("libpython*")}
        return links | {STUB: self.stub}


def patch_for_numpy_2(stub: Path) -> bytes:
    """Return the bytes of a stub in LOADS, patched for numpy 2."""
    content = bytearray(stub.read_bytes())
    for place in LOADS[file_sha256(stub)]:
        content[place] += ELSIZE_2 - ELSIZE_1
    return bytes(content)


def _check_libpython() -> DoctorCheck:
    if found := libpython():
        return DoctorCheck("libpython", True, str(found))
    hint = f"install libpython{PYTHON} (Debian's name), or use a Python built with --enable-shared"
    return DoctorCheck("libpython", False, f"{libpython_name()} not found", hint)
