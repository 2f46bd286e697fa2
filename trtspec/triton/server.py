# SPDX-License-Identifier: Apache-2.0
"""Find a tritonserver, give it what it needs to run here, and start it on loopback.

Searched in this order: `TRTSPEC_TRITONSERVER`, PATH, the nvidia-pytriton wheel. The wheel's server finds its Python
backend in no fixed place, so a small directory of links in the cache stands in for an installation.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from trtspec.errors import DeployError
from trtspec.paths import cache_dir
from trtspec.probe import Probe
from trtspec.system import LOOPBACK, die_with_parent

VARIABLE = "TRTSPEC_TRITONSERVER"
WHEEL = "nvidia-pytriton"
STUB = "triton_python_backend_stub"
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
EXIT_TIMEOUT_S = 10  # for requests in flight
SHARED_MEMORY = Path("/dev/shm")
INSTALL_HINT = f"pip install 'trtspec[triton]', or set {VARIABLE} to a tritonserver"


@dataclass(frozen=True)
class Server:
    """A tritonserver and how it has to be started."""

    executable: Path
    source: str
    backends: Path | None = None  # None: where the server looks by itself
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Ports:
    """The loopback ports of one server."""

    http: int
    grpc: int
    metrics: int


def find_server() -> Server:
    """Return the tritonserver to use; where there is none, the error says how to get one."""
    if named := os.environ.get(VARIABLE):
        return Server(_executable(named), f"${VARIABLE}", environment=_environment([]))
    if found := shutil.which("tritonserver"):
        return Server(Path(found), "PATH", environment=_environment([]))
    if wheel := _wheel():
        return _server_of_wheel(*wheel)
    raise DeployError("no tritonserver on this machine", hint=INSTALL_HINT)


def server_command(server: Server, repository: Path, ports: Ports, *, model: str, shm_prefix: str) -> list[str]:
    """Return the argv that serves `model`, and the models it is composed of, on loopback."""
    command = [
        str(server.executable),
        f"--model-repository={repository}",
        "--model-control-mode=explicit",
        f"--load-model={model}",
        "--disable-auto-complete-config",
        f"--exit-timeout-secs={EXIT_TIMEOUT_S}",
        f"--http-address={LOOPBACK}",
        f"--http-port={ports.http}",
        f"--grpc-address={LOOPBACK}",
        f"--grpc-port={ports.grpc}",
        f"--metrics-address={LOOPBACK}",
        f"--metrics-port={ports.metrics}",
        f"--backend-config=python,shm-region-prefix-name={shm_prefix}",
    ]
    return [*command, f"--backend-directory={server.backends}"] if server.backends else command


def start_server(
    server: Server, command: list[str], log: Path, *, detach: bool, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a server as leader of its own session, all it says going to `log`; unless detached it dies with us."""
    with log.open("wb") as output, _clear_os_error(server):
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **server.environment, **(environment or {})},
            start_new_session=True,
            preexec_fn=None if detach else die_with_parent(),  # noqa: PLW1509  two system calls, no lock
        )


@contextmanager
def _clear_os_error(server: Server) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DeployError(f"cannot be started: {error.strerror}", where=str(server.executable)) from None


def remove_shared_memory(shm_prefix: str) -> None:
    """Remove what a killed server left in shared memory."""
    for region in SHARED_MEMORY.glob(f"{shm_prefix}*"):
        region.unlink(missing_ok=True)


def probe_server() -> list[Probe]:
    """Return what a server on this machine has and lacks, for people who ask why it does not start."""
    uses_wheel = _wheel() is not None
    try:
        server = find_server()
        uses_wheel = server.backends is not None
        found = Probe("tritonserver", True, f"{server.executable} ({server.source})")
    except DeployError as error:
        found = Probe("tritonserver", False, error.message, error.hint)
    return [found, *_needs_of_wheel()] if uses_wheel else [found]


def _executable(named: str) -> Path:
    path = Path(named).expanduser().absolute()
    if not (path.is_file() and os.access(path, os.X_OK)):
        raise DeployError("not an executable file", where=f"{VARIABLE}={named}", hint="point it at a tritonserver")
    return path


def _wheel() -> tuple[Path, str] | None:
    """Return the tritonserver folder of the wheel and its version, without importing it."""
    try:
        wheel = metadata.distribution(WHEEL)
    except metadata.PackageNotFoundError:
        return None
    return Path(str(wheel.locate_file("pytriton/tritonserver"))), wheel.version


def _server_of_wheel(root: Path, version: str) -> Server:
    for need in _needs_of_wheel():
        if not need.ok:
            raise DeployError(
                f"the tritonserver of {WHEEL} cannot run Python models here: {need.name}: {need.detail}", hint=need.hint
            )
    libraries = [root.parents[1] / "nvidia_pytriton.libs", _libpython_folder() or root]
    return Server(
        root / "bin" / "tritonserver",
        f"{WHEEL} {version}",
        backends=_linked_backends(root),
        environment=_environment(libraries),
    )


def _needs_of_wheel() -> list[Probe]:
    return [_probe_numpy(), _probe_stub(), _probe_libpython()]


def _environment(libraries: list[Path]) -> dict[str, str]:
    """Return the variables by which the Python stub finds this interpreter and its libraries."""
    environment = {"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])}
    if libraries:
        known = [os.environ["LD_LIBRARY_PATH"]] if os.environ.get("LD_LIBRARY_PATH") else []
        environment["LD_LIBRARY_PATH"] = os.pathsep.join([*map(str, libraries), *known])
    return environment


def _linked_backends(root: Path) -> Path:
    """Return a backend directory whose Python backend is the wheel's, with the stub of this Python version beside it.

    It is made beside its place and renamed into it: of two processes one wins, and both have the same directory.
    """
    links = {path.name: path for path in (root / "backends" / "python").iterdir() if path.is_file()}
    links[STUB] = _stub(root)
    content = "\n".join(f"{name} {target}" for name, target in sorted(links.items()))
    place = cache_dir() / "triton" / hashlib.sha256(content.encode()).hexdigest()[:16]
    if place.is_dir():
        return place
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(dir=place.parent))
        (fresh / "python").mkdir()
        for name, target in links.items():
            (fresh / "python" / name).symlink_to(target)
    except OSError as error:
        raise DeployError(
            f"cannot be written: {error.strerror}",
            where=str(place.parent),
            hint="point TRTSPEC_CACHE at a directory that can be written",
        ) from None
    try:
        fresh.rename(place)
    except OSError:  # another process was first
        shutil.rmtree(fresh)
    return place


def _stub(root: Path) -> Path:
    return root / "python_backend_stubs" / PYTHON / STUB


def _probe_stub() -> Probe:
    wheel = _wheel()
    if wheel and _stub(wheel[0]).is_file():
        return Probe("python stub", True, f"for Python {PYTHON}")
    known = sorted(path.name for path in (wheel[0] / "python_backend_stubs").glob("*")) if wheel else []
    return Probe(
        "python stub",
        False,
        f"none for Python {PYTHON}",
        f"use a Python of {', '.join(known)}" if known else INSTALL_HINT,
    )


def _probe_numpy() -> Probe:
    version = metadata.version("numpy")
    hint = None if version.startswith("1.") else "pip install 'numpy<2': with numpy 2 the stub garbles tensors"
    return Probe("numpy below 2", hint is None, version, hint)


def _probe_libpython() -> Probe:
    name, folder = _libpython_name(), _libpython_folder()
    if folder:
        return Probe("libpython", True, str(folder / name))
    return Probe("libpython", False, f"{name} not found", "use an interpreter that was built with --enable-shared")


def _libpython_name() -> str:
    return str(sysconfig.get_config_var("INSTSONAME") or f"libpython{PYTHON}.so.1.0").replace(".a", ".so.1.0")


def _libpython_folder() -> Path | None:
    """Return where this interpreter's shared library lies; distributions move it away from where it was built."""
    multiarch = sysconfig.get_config_var("MULTIARCH") or ""
    built = Path(sysconfig.get_config_var("LIBDIR") or "/usr/lib")
    places = [built, Path(sys.base_prefix) / "lib", built / multiarch, Path("/usr/lib") / multiarch]
    return next((place for place in places if (place / _libpython_name()).is_file()), None)
