# SPDX-License-Identifier: Apache-2.0
"""The toolchain for kernels on this machine: a C++ compiler, and nvcc if it is installed.

A toolchain is identified by its compilers' versions, not by their paths: equal versions build equal libraries.
"""

from __future__ import annotations

import logging
import platform
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass, field, replace

from trtspec.core.errors import TrtspecError

log = logging.getLogger(__name__)

CXX = ("g++", "clang++")
NVCC = ("nvcc", "/usr/local/cuda/bin/nvcc")
TIMEOUT_S = 60

# Bit-identical results on every machine require code without contraction and reordering. Loops that clang does not
# vectorize are only slower. The tests compile with -Werror; users do not, because their compilers may warn of more.
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
# For sources with this name, which are used on machines with AVX-512.
AVX512, AVX512_FLAGS = "avx512.cpp", ("-march=x86-64-v4",)

FLAGS = (*CXX_FLAGS, *NVCC_FLAGS, *X86_FLAGS, *AVX512_FLAGS)

NO_KEY = {"key": False}


@dataclass(frozen=True)
class Toolchain:
    """Compilers and their versions; `nvcc_version` is "" for CPU-only libraries."""

    machine: str
    cxx_version: str
    nvcc_version: str
    cxx: str = field(metadata=NO_KEY)
    nvcc: str = field(metadata=NO_KEY)

    def compile_command(
        self, source: str, output: str, includes: tuple[str, ...], architectures: tuple[str, ...]
    ) -> tuple[str, ...]:
        """Return the argv that compiles a source; CUDA sources are compiled for `architectures`."""
        files = (*(f"-I{folder}" for folder in includes), "-c", source, "-o", output)
        if source.endswith(".cu"):
            return (self.nvcc, *NVCC_FLAGS, f"-ccbin={self.cxx}", *code_flags(architectures), *files)
        processor = AVX512_FLAGS if source.endswith(AVX512) else X86_FLAGS if self.machine == "x86_64" else ()
        return (self.cxx, *CXX_FLAGS, *processor, *files)

    def link_command(self, objects: tuple[str, ...], output: str) -> tuple[str, ...]:
        """Return the argv that links objects to a shared library; with nvcc, the CUDA runtime is linked statically."""
        if self.nvcc:
            return (
                self.nvcc,
                "-shared",
                "-cudart=static",
                "-Xcompiler=-fopenmp",
                f"-ccbin={self.cxx}",
                *objects,
                "-o",
                output,
            )
        return (self.cxx, "-shared", "-fopenmp", *objects, "-o", output)

    def for_cpus(self) -> Toolchain:
        """Return the same compilers without nvcc."""
        return replace(self, nvcc="", nvcc_version="")

    def check_architectures(self, architectures: tuple[str, ...]) -> None:
        """Raise TrtspecError for architectures unknown to nvcc, or if nvcc is missing."""
        if not architectures:
            return
        if not self.nvcc:
            hint = "install the CUDA toolkit, or build for CPUs without --arch"
            raise TrtspecError("nvcc, which compiles for GPUs, was not found", hint=hint)
        known = _output(self.nvcc, "--list-gpu-code").split()
        for name in architectures:
            if re.sub("[af]$", "", name) not in known:  # listed without the letter
                raise TrtspecError(f"nvcc does not support {name!r}; supported: {', '.join(known)}")


def probe_toolchain() -> Toolchain:
    """Return this machine's compilers; raise TrtspecError if a C++ compiler is missing."""
    cxx = _find_program(CXX)
    if not cxx:
        hint = "install g++, or build on another machine with the same kind of processor"
        raise TrtspecError(f"no C++ compiler on the PATH ({' or '.join(CXX)})", hint=hint)
    nvcc = _find_program(NVCC)
    nvcc_version = _output(nvcc, "--version").strip().rpartition("\n")[2] if nvcc else ""
    return Toolchain(platform.machine(), _output(cxx, "--version").partition("\n")[0], nvcc_version, cxx, nvcc)


def gpu_architecture(sm: int) -> str:
    """Return nvcc's name of a GPU architecture; `sm` is the compute capability times ten."""
    return "sm_90a" if sm == 90 else f"sm_{sm}"


def code_flags(architectures: tuple[str, ...]) -> tuple[str, ...]:
    """Return nvcc's flags for machine code of each architecture, and PTX for the newest portable one.

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
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise TrtspecError(f"{' '.join(command)} failed: {error}") from None
    return done.stdout
