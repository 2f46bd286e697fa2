# SPDX-License-Identifier: Apache-2.0
"""Compiles kernels of plugins/ into a shared library, once per set of sources, compilers, flags and processors.

    cache/plugins/<key>/libtrtspec.so    published atomically, with its description in library.json
    cache/plugins/<key>.lock             held while it is built
    trtspec/_data/kernels/               in a wheel: the same two files, compiled for CPUs by plugins/CMakeLists.txt

Only `build_library` compiles; `find_libraries` searches the wheel and the cache. A toolchain (a C++ compiler, and nvcc
if it is installed) is identified by its compilers' versions, not by their paths: equal versions build equal libraries.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from trtspec.core.errors import StepError, StepTimeout, TrtspecError
from trtspec.core.files import file_lock, fsync_path, map_in_threads
from trtspec.core.paths import cache_dir, plugins_dir, wheel_kernels_dir
from trtspec.core.registry import did_you_mean
from trtspec.store.digest import compute_digest, dump_checksummed, load_checksummed

log = logging.getLogger(__name__)

LIBRARY = "libtrtspec.so"
DESCRIPTION = "library.json"
SCHEMA = "trtspec.kernels/1"
MANIFEST = "plugin.yaml"
HOST_PLUGINS = ("quantize",)  # used by builds, not by engines
COMMON_SOURCES = ("common/abi.cpp",)
WITHOUT_CUDA = ("common/no_cuda.cpp",)
SOURCES = ("*.cmake", "*.cpp", "*.cu", "*.cuh", "*.h", "CMakeLists.txt", MANIFEST)  # also in cmake/wheel.cmake
TIMEOUT_S = 1800
SHOWN_LINES = 20

_ERROR = re.compile(
    r"^(?P<file>[^\s:(][^:(\n]*)[:(](?P<line>\d+)(?::\d+)?\)?:? (?:fatal )?error ?:? (?P<text>.*)$", re.M
)

CXX = ("g++", "clang++")
NVCC = ("nvcc", "/usr/local/cuda/bin/nvcc")
PROBE_TIMEOUT_S = 60

# Bit-identical results on every machine require code without contraction and reordering. Loops that clang does not
# vectorize are only slower. Only the tests compile with -Werror, because other compilers may have more warnings.
CXX_FLAGS = (
    "-std=c++17", "-O3", "-ffp-contract=off", "-fno-trapping-math", "-fno-math-errno", "-fopenmp",
    "-Wall", "-Wextra", "-Wno-pass-failed", "-fPIC", "-fvisibility=hidden", "-fvisibility-inlines-hidden",
)  # fmt: skip
NVCC_FLAGS = (
    "-std=c++17", "-O3", "--fmad=false", "-split-compile=0",  # one thread per core
    "-Xcompiler=-Wall,-fPIC,-fvisibility=hidden,-fvisibility-inlines-hidden",
)  # fmt: skip
# The minimum x86 machine: AVX2, FMA and F16C.
X86_FLAGS = ("-march=x86-64-v3",)
# Flags for sources with this name, which run only on machines with AVX-512.
AVX512, AVX512_FLAGS = "avx512.cpp", ("-march=x86-64-v4",)

FLAGS = (*CXX_FLAGS, *NVCC_FLAGS, *X86_FLAGS, *AVX512_FLAGS)

NO_KEY = {"key": False}


@dataclass(frozen=True)
class Toolchain:
    """A C++ compiler and nvcc, with their versions; `nvcc_version` is "" for CPU-only libraries."""

    machine: str
    cxx_version: str
    nvcc_version: str
    cxx: str = field(metadata=NO_KEY)
    nvcc: str = field(metadata=NO_KEY)

    def compile_command(
        self, source: str, output: str, includes: tuple[str, ...], architectures: tuple[str, ...]
    ) -> tuple[str, ...]:
        """Return the command line that compiles a source file; CUDA sources are compiled for all `architectures`."""
        files = (*(f"-I{folder}" for folder in includes), "-c", source, "-o", output)
        if source.endswith(".cu"):
            return (self.nvcc, *NVCC_FLAGS, f"-ccbin={self.cxx}", *code_flags(architectures), *files)
        processor = AVX512_FLAGS if source.endswith(AVX512) else X86_FLAGS if self.machine == "x86_64" else ()
        return (self.cxx, *CXX_FLAGS, *processor, *files)

    def link_command(self, objects: tuple[str, ...], output: str) -> tuple[str, ...]:
        """Return the command line that links a shared library; nvcc links the CUDA runtime statically."""
        with_nvcc = (self.nvcc, "-shared", "-cudart=static", "-Xcompiler=-fopenmp", f"-ccbin={self.cxx}")
        return (*(with_nvcc if self.nvcc else (self.cxx, "-shared", "-fopenmp")), *objects, "-o", output)

    def for_cpus(self) -> Toolchain:
        return replace(self, nvcc="", nvcc_version="")

    def check_architectures(self, architectures: tuple[str, ...]) -> None:
        """Raise TrtspecError if nvcc is missing or does not support one of the GPU architectures."""
        if not architectures:
            return
        if not self.nvcc:
            hint = "install the CUDA toolkit, or build for CPUs without --arch"
            raise TrtspecError("nvcc, which compiles for GPUs, was not found", hint=hint)
        known = _output(self.nvcc, "--list-gpu-code").split()
        for name in architectures:
            if re.sub("[af]$", "", name) not in known:  # nvcc lists names without the letter
                raise TrtspecError(f"nvcc does not support {name!r}; supported: {', '.join(known)}")


def probe_toolchain() -> Toolchain:
    """Return this machine's compilers; raise TrtspecError without a C++ compiler."""
    cxx = _find_program(CXX)
    if not cxx:
        hint = "install g++, or build on another machine with the same kind of processor"
        raise TrtspecError(f"no C++ compiler on the PATH ({' or '.join(CXX)})", hint=hint)
    nvcc = _find_program(NVCC)
    nvcc_version = _output(nvcc, "--version").strip().rpartition("\n")[2] if nvcc else ""
    return Toolchain(platform.machine(), _output(cxx, "--version").partition("\n")[0], nvcc_version, cxx, nvcc)


def gpu_architecture(sm: int) -> str:
    """Return nvcc's name for a GPU architecture; `sm` is the compute capability times ten."""
    return "sm_90a" if sm == 90 else f"sm_{sm}"


def code_flags(architectures: tuple[str, ...]) -> tuple[str, ...]:
    """Return nvcc's flags for machine code of each architecture, and for PTX of the newest portable one.

    Code and PTX for an architecture with a letter, such as sm_90a, run only on that architecture.
    """
    numbers = [name.removeprefix("sm_") for name in architectures]
    flags = [f"-gencode=arch=compute_{number},code=sm_{number}" for number in numbers]
    if plain := [int(number) for number in numbers if re.fullmatch("[0-9]+", number)]:
        flags.append(f"-gencode=arch=compute_{max(plain)},code=compute_{max(plain)}")
    return tuple(flags)


def _find_program(names: tuple[str, ...]) -> str:
    return next((path for name in names if (path := shutil.which(name))), "")


def _output(*command: str) -> str:
    log.info("run %s", shlex.join(command))
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise TrtspecError(f"{' '.join(command)} failed: {error}") from None
    return done.stdout


class PluginSources(BaseModel):
    """The source files in a plugin's folder, by kind."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    host: list[str]
    avx512: list[str] = []
    cuda: list[str] = []


class Plugin(BaseModel):
    """A plugin: a folder of plugins/, described by its plugin.yaml."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: str
    summary: str
    sources: PluginSources
    architectures: list[Annotated[str, Field(pattern="^sm_[0-9]+[af]?$")]]

    def paths(self, architectures: tuple[str, ...], machine: str) -> list[str]:
        """Return the files to compile, relative to plugins/: AVX-512 files only for x86, CUDA files only for GPUs."""
        files = self.sources.host + (self.sources.avx512 if machine == "x86_64" else [])
        return [f"{self.name}/{file}" for file in files + (self.sources.cuda if architectures else [])]


@dataclass(frozen=True)
class LibrarySpec:
    """The inputs of a library's build; an empty list of GPU `architectures` is for CPUs only."""

    plugins: tuple[str, ...]
    architectures: tuple[str, ...]
    sources: str  # digest of the source files and the compiler flags
    toolchain: Toolchain

    @property
    def key(self) -> str:
        """Return the library's cache key, 64 hex digits."""
        return compute_digest("trtspec.plugins/1", (self, FLAGS))

    @property
    def identity(self) -> tuple[tuple[str, str], ...]:
        """Return the names and values of the tools that decide the library's bytes."""
        tools = self.toolchain
        return (("processor", tools.machine), ("C++ compiler", tools.cxx_version), ("nvcc", tools.nvcc_version))

    @property
    def path(self) -> Path:
        """Return the library's path in the cache, whether it exists or not."""
        return _libraries() / self.key / LIBRARY

    def describe(self) -> dict[str, Any]:
        toolchain = self.toolchain
        compilers = [version for version in (toolchain.cxx_version, toolchain.nvcc_version) if version]
        found = {"plugins": self.plugins, "architectures": self.architectures, "sources": self.sources}
        return {"library": {**found, "machine": toolchain.machine, "compilers": compilers}}


@dataclass(frozen=True)
class BuiltLibrary:
    """A library in the wheel or the cache, as described by its library.json."""

    path: Path
    plugins: list[str]
    architectures: list[str]
    sources: str
    machine: str
    compilers: list[str]

    def as_dict(self) -> dict[str, Any]:
        return {**vars(self), "path": str(self.path)}


def describe_library(path: Path) -> str:
    """Return a library's path and where it was compiled, for users."""
    return f"{path}, {'from the wheel' if path.parent == wheel_kernels_dir() else 'compiled on this machine'}"


def discover_plugins() -> dict[str, Plugin]:
    """Return all plugins by name; raise TrtspecError if a name differs from its folder's."""
    from trtspec.core.paths import load_package_yaml

    found = {}
    for path in sorted(plugins_dir().glob(f"*/{MANIFEST}")):
        plugin = Plugin.model_validate(load_package_yaml(path))
        if plugin.name != path.parent.name:
            raise TrtspecError(f"the name {plugin.name!r} differs from its folder's", where=str(path))
        found[plugin.name] = plugin
    return found


def plan_library(names: tuple[str, ...] = (), architectures: tuple[str, ...] = ()) -> LibrarySpec:
    """Return the spec of a library with the named plugins (all if empty) for this machine's compilers.

    Raise TrtspecError for an unknown plugin or architecture, or if a compiler is missing.
    """
    known = discover_plugins()
    for name in names:
        if name not in known:
            raise TrtspecError(
                f"unknown plugin {name!r}; available: {', '.join(known)}", hint=did_you_mean(name, known)
            )
    toolchain = probe_toolchain()
    toolchain.check_architectures(architectures)
    selected = tuple(sorted(set(names or known)))
    toolchain = toolchain if architectures else toolchain.for_cpus()
    return LibrarySpec(selected, tuple(sorted(set(architectures))), _digest_sources(_digest_files()), toolchain)


def build_library(spec: LibrarySpec, timeout_s: float = TIMEOUT_S) -> Path:
    """Build a library unless the cache has one that loads; return its path. Safe for concurrent processes.

    `timeout_s` limits each compiler run. Raise StepError with the compiler's first error, or StepTimeout if a compiler,
    or another process that builds the same library, takes longer.
    """
    if not loads(spec.path):
        from filelock import Timeout

        _libraries().mkdir(parents=True, exist_ok=True)
        try:
            with file_lock(_libraries() / f"{spec.key}.lock", timeout_s):
                if not loads(spec.path):
                    _publish(spec, timeout_s)
        except Timeout:
            message = f"another process has been building this library for {timeout_s:.0f} s"
            raise StepTimeout(message, where=str(spec.path)) from None
    return spec.path


def find_libraries(names: tuple[str, ...] = ()) -> list[Path]:
    """Return up-to-date libraries with the named plugins, or all plugins: most GPU architectures first, and the wheel's
    before those of the cache.
    """
    wanted, files = set(names or discover_plugins()), _digest_files()
    sources = (files, _digest_sources(files))
    made = (one for one in list_libraries() if one.sources in sources and one.machine == platform.machine())
    fitting = [one for one in made if wanted <= set(one.plugins)]
    return [one.path for one in sorted(fitting, key=lambda one: -len(one.architectures))]


def list_libraries() -> list[BuiltLibrary]:
    """Return the library in the wheel, if there is one, and all libraries in the cache, by key."""
    paths = [wheel_kernels_dir() / DESCRIPTION, *sorted(_libraries().glob(f"*/{DESCRIPTION}"))]
    read = ((path, load_checksummed(SCHEMA, path)) for path in paths)
    return [BuiltLibrary(path.with_name(LIBRARY), **made["library"]) for path, made in read if made]


def loads(path: Path) -> bool:
    """Return whether the library at `path` can be loaded; a power failure may have damaged it."""
    try:
        ctypes.CDLL(str(path))
    except OSError:
        return False
    return True


def _publish(spec: LibrarySpec, timeout_s: float) -> None:
    """Compile into a temporary sibling directory and rename it to its final path."""
    with tempfile.TemporaryDirectory(dir=_libraries(), prefix="tmp-", ignore_cleanup_errors=True) as temporary:
        made = Path(temporary) / "made"
        made.mkdir()
        _compile(spec, Path(temporary), made / LIBRARY, timeout_s)
        (made / DESCRIPTION).write_bytes(dump_checksummed(SCHEMA, spec.describe()))
        for path in (made / LIBRARY, made / DESCRIPTION, made):
            fsync_path(path)
        with suppress(FileNotFoundError):  # move away a library that does not load
            os.rename(spec.path.parent, Path(temporary) / "broken")
        os.rename(made, spec.path.parent)
    fsync_path(_libraries())


def _compile(spec: LibrarySpec, workdir: Path, library: Path, timeout_s: float) -> None:
    """Compile all sources in parallel and link them."""
    folder, known = plugins_dir(), discover_plugins()
    includes = (str(folder), str(folder / "include"))
    common = COMMON_SOURCES if spec.architectures else COMMON_SOURCES + WITHOUT_CUDA
    commands, objects = [], []
    machine = spec.toolchain.machine
    for source in (
        *common,
        *(path for name in spec.plugins for path in known[name].paths(spec.architectures, machine)),
    ):
        path, output = str(folder / source), str(workdir / (source.replace("/", "_") + ".o"))
        commands.append(spec.toolchain.compile_command(path, output, includes, spec.architectures))
        objects.append(output)
    map_in_threads(lambda command: _run(command, timeout_s), commands)
    _run(spec.toolchain.link_command(tuple(objects), str(library)), timeout_s)


def _run(command: tuple[str, ...], timeout_s: float) -> None:
    log.info("run %s", shlex.join(command))
    try:
        # the error pattern requires English messages
        environment = {**os.environ, "LC_ALL": "C"}
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False, env=environment)
    except subprocess.TimeoutExpired:
        raise StepTimeout(f"{command[0]} did not finish within {timeout_s:.0f} s") from None
    if done.returncode:
        raise _first_error(command, done.stderr + done.stdout)


def _first_error(command: tuple[str, ...], output: str) -> StepError:
    """Return a StepError with the compiler's first error message and the source line that it refers to."""
    hint = f"for the full output, run: {shlex.join(command)}"
    found = _ERROR.search(output)
    if found is None:
        last = "\n".join(output.splitlines()[-SHOWN_LINES:])
        return StepError(f"{command[0]} failed:\n{last}", hint=hint)
    where = f"{found['file']}:{found['line']}"
    return StepError(f"{found['text'].strip()}\n{_source_line(found)}", where=where, hint=hint)


def _source_line(found: re.Match[str]) -> str:
    try:
        lines = Path(found["file"]).read_text(errors="replace").splitlines()
        return f"  {found['line']} | {lines[int(found['line']) - 1]}"
    except (OSError, IndexError):
        return ""


def _digest_sources(files: str) -> str:
    """Return the digest of the plugins' source files and the compiler flags: `sources` of a library in the cache."""
    return compute_digest("trtspec.plugins.sources/3", (FLAGS, files))


def _digest_files() -> str:
    """Return the digest of the plugins' source files: `sources` of the library in the wheel.

    It is the SHA-256 of the output of sha256sum for the files, by name; plugins/cmake/wheel.cmake computes it too. The
    compiler flags are in one of the files, CMakeLists.txt.
    """
    folder = plugins_dir()
    files = {path.relative_to(folder).as_posix() for pattern in SOURCES for path in folder.rglob(pattern)}
    lines = [f"{hashlib.sha256((folder / file).read_bytes()).hexdigest()}  {file}\n" for file in sorted(files)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _libraries() -> Path:
    return cache_dir() / "plugins"
