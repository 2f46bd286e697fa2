# SPDX-License-Identifier: Apache-2.0
"""TensorRT's plugins without TensorRT: tensorrt_driver.cpp compiled against its headers and called from here."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

PLUGINS = Path(__file__).parents[2] / "plugins"
SOURCES = ("tensorrt/*.cpp", "verify_*/tensorrt.cpp", "verify_*/cpu.cpp", "common/*.cpp")
FLAGS = ("-std=c++17", "-O1", "-g", "-fopenmp", "-ffp-contract=off", "-mfma", "-mf16c", "-mavx2", "-fPIC", "-shared")
STRICT = ("-fvisibility=hidden", "-Wall", "-Wextra", "-Werror", "-Wl,--no-undefined")
WRAPPED = ("verify_chain_cuda", "verify_tree_cuda", "verify_chain_workspace", "verify_tree_workspace")
SYSTEM = ("/usr/include", "/usr/include/x86_64-linux-gnu", "/usr/local/tensorrt/include")


def find_includes() -> list[Path]:
    """Return where TensorRT's and CUDA's headers are, or skip the test."""
    roots = [Path(os.environ[name]) for name in ("TENSORRT_ROOT", "CUDA_HOME") if name in os.environ]
    nvcc = shutil.which("nvcc")
    folders = [*(root / "include" for root in roots), *(Path(folder) for folder in SYSTEM)]
    folders += [Path("/usr/local/cuda/include"), *sorted(Path("/usr/local").glob("cuda-*/include"))]
    folders += [Path(nvcc).resolve().parents[1] / "include"] if nvcc else []
    found = []
    for header, variable in (("NvInferRuntime.h", "TENSORRT_ROOT"), ("cuda_runtime_api.h", "CUDA_HOME")):
        folder = next((folder for folder in folders if (folder / header).is_file()), None)
        if folder is None:
            pytest.skip(f"{header} is not here: set {variable} to the directory with include/{header}")
        found.append(folder)
    return found


def compile_driver(out: Path) -> Path:
    """Return the driver as a shared library below `out`; skips where a compiler or headers are missing."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("g++ is not on PATH")
    includes = [f"-I{PLUGINS}", f"-I{PLUGINS / 'include'}", *(f"-isystem{folder}" for folder in find_includes())]
    sources = [str(path) for pattern in SOURCES for path in sorted(PLUGINS.glob(pattern))]
    sources.append(str(Path(__file__).with_suffix(".cpp")))
    wraps = [f"-Wl,--wrap=trtspec_{name}" for name in WRAPPED]
    library = out / "driver.so"
    subprocess.run(
        [compiler, *FLAGS, *STRICT, *wraps, *includes, *sources, "-o", str(library), "-ldl"], check=True, timeout=300
    )
    return library


class Driver:
    """The compiled driver; `message` is what a plugin said last to TensorRT's logger."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))
        for name in ("create", "cloned", "from_plan"):
            getattr(self._library, name).restype = ctypes.c_void_p
        for name in ("message", "kept_fields", "known_fields", "tensor_names", "output_shapes", "trtspec_error"):
            getattr(self._library, name).restype = ctypes.c_char_p
        self._library.workspace.restype = ctypes.c_uint64

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function of the driver; texts go and come as str, handles come from `create`."""
        answer = getattr(self._library, name)(*map(_passed, arguments))
        return answer.decode() if isinstance(answer, bytes) else answer

    @property
    def message(self) -> str:
        said = self.call("message")
        assert isinstance(said, str)
        return said

    def create(self, plugin: str, fields: str) -> Plugin | None:
        handle = self.call("create", plugin, fields)
        return None if handle is None else Plugin(self, handle)


class Plugin:
    """One plugin of the driver's."""

    def __init__(self, driver: Driver, handle: int) -> None:
        self._driver = driver
        self._handle = ctypes.c_void_p(handle)

    def __del__(self) -> None:
        self._driver.call("destroy", self._handle)

    def call(self, name: str, *arguments: Any) -> Any:
        return self._driver.call(name, self._handle, *arguments)

    def again(self, name: str) -> Plugin:
        """Return what `cloned` or `from_plan` makes of it."""
        return Plugin(self._driver, self.call(name))

    def launch(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], types: str | None = None) -> int:
        """Let it compute; inputs are described by their own types, or by `types` where numpy lacks one."""
        described = types or " ".join(f"{array.dtype}[{','.join(map(str, array.shape))}]" for array in inputs)
        answer = self.call("launch", described, _pointers(inputs), _pointers(outputs))
        assert isinstance(answer, int)
        return answer


def _passed(argument: Any) -> Any:
    return argument.encode() if isinstance(argument, str) else argument


def _pointers(arrays: Sequence[np.ndarray]) -> Any:
    assert all(array.flags.c_contiguous for array in arrays)
    return (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
