# SPDX-License-Identifier: Apache-2.0
"""The test driver of the plugin library: tensorrt_driver.cpp and plugins/tensorrt compiled for the host, with bindings.

Uses NVIDIA's headers if TENSORRT_ROOT is set, else the declarations in tests/plugins/declared.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests._support.compiled import compile_once

PLUGINS = Path(__file__).parents[2] / "plugins"
SOURCES = ("tensorrt/*.cpp", "verify_*/tensorrt.cpp", "verify_*/cpu.cpp", "common/*.cpp")
FLAGS = ("-std=c++17", "-O1", "-g", "-fopenmp", "-ffp-contract=off", "-mfma", "-mf16c", "-mavx2", "-fPIC", "-shared")
CUDA_SOURCES = ("tensorrt/*.cpp", "verify_*/tensorrt.cpp")
STRICT = ("-fvisibility=hidden", "-Wall", "-Wextra", "-Werror", "-Wl,--no-undefined")
WRAPPED = ("verify_chain_cuda", "verify_tree_cuda", "verify_chain_workspace", "verify_tree_workspace")
DECLARED = Path(__file__).with_name("declared")
NEWEST = 11  # major version of the declared interface


def find_includes(major: int) -> list[str]:
    """Return the compiler's options for TensorRT's and CUDA's headers; skip if NVIDIA's have another major version."""
    if "TENSORRT_ROOT" not in os.environ:
        return [f"-isystem{DECLARED}", f"-DNV_TENSORRT_MAJOR={major}"]
    root = Path(os.environ["TENSORRT_ROOT"]) / "include"
    version = (root / "NvInferVersion.h").read_text()
    found = re.search(r"define (?:NV_TENSORRT_MAJOR|TRT_MAJOR_ENTERPRISE) +(\d+)", version)
    if found is None or int(found[1]) != major:
        pytest.skip(f"TENSORRT_ROOT lacks the headers of TensorRT {major}")
    nvcc = shutil.which("nvcc")
    folders = [Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "include"]
    folders += [Path(nvcc).resolve().parents[1] / "include"] if nvcc else []
    cuda = next((folder for folder in folders if (folder / "cuda_runtime_api.h").is_file()), None)
    if cuda is None:
        pytest.skip("cuda_runtime_api.h is not here: set CUDA_HOME to the directory with include/cuda_runtime_api.h")
    return [f"-isystem{root}", f"-isystem{cuda}"]


def compile_driver(out: Path, major: int = NEWEST) -> Path:
    """Return the driver as a shared library below `out`; skip if a compiler or headers are missing."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("g++ is not on PATH")
    includes = [f"-I{PLUGINS}", f"-I{PLUGINS / 'include'}", *find_includes(major)]
    sources = [str(path) for pattern in SOURCES for path in sorted(PLUGINS.glob(pattern))]
    sources.append(str(Path(__file__).with_suffix(".cpp")))
    wraps = [f"-Wl,--wrap=trtspec_{name}" for name in WRAPPED]
    library = out / "driver.so"
    compile_once([compiler, *FLAGS, *STRICT, *wraps, *includes, *sources, "-o", str(library), "-ldl"], out)
    return library


def compile_cuda_driver(out: Path, kernels: Path) -> Path:
    """Return the driver below `out`, linked with a library of CUDA's kernels; skip if g++ is missing."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("g++ is not on PATH")
    includes = [f"-I{PLUGINS}", f"-I{PLUGINS / 'include'}", *find_includes(NEWEST), "-DTRTSPEC_WITH_CUDA"]
    sources = [str(path) for pattern in CUDA_SOURCES for path in sorted(PLUGINS.glob(pattern))]
    sources.append(str(Path(__file__).with_suffix(".cpp")))
    library, kernels = out / "driver.so", kernels.resolve()
    command = [compiler, *FLAGS, *STRICT, *includes, *sources, str(kernels), f"-Wl,-rpath,{kernels.parent}"]
    compile_once([*command, "-o", str(library), "-ldl"], out)
    return library


class HostMemory:
    """Arrays in host memory."""

    def pointers(self, arrays: Sequence[np.ndarray]) -> Any:
        """Return the arrays' addresses, for reading and writing."""
        return _addresses([array.ctypes.data for array in arrays])

    def allocate(self, size: int) -> int:
        """Return the address of `size` bytes that live as long as this object."""
        self._space = np.empty(max(1, size), np.uint8)
        return int(self._space.ctypes.data)

    def finish(self) -> None:
        """Return when the arrays have the results."""


class CudaMemory:
    """Copies of arrays on a GPU; `finish` copies them back."""

    def __init__(self) -> None:
        self._copies: list[tuple[np.ndarray, Any]] = []

    def pointers(self, arrays: Sequence[np.ndarray]) -> Any:
        """Return the addresses of copies on the device."""
        import torch

        copies = [torch.from_numpy(array.view(np.uint8).reshape(-1)).cuda() for array in arrays]
        self._copies += zip(arrays, copies, strict=True)
        return _addresses([copy.data_ptr() for copy in copies])

    def allocate(self, size: int) -> int:
        """Return the address of `size` bytes on the device that live as long as this object."""
        import torch

        self._space = torch.zeros(max(1, size), dtype=torch.uint8, device="cuda")
        return int(self._space.data_ptr())

    def finish(self) -> None:
        """Wait for the device and copy everything back."""
        import torch

        torch.cuda.synchronize()
        for array, copy in self._copies:
            array.view(np.uint8).reshape(-1)[:] = copy.cpu().numpy()


class Driver:
    """The compiled driver; `message` is the last message to TensorRT's logger, `memory` the memory of launches."""

    def __init__(self, library: Path, memory: type[HostMemory] | type[CudaMemory] = HostMemory) -> None:
        self.memory = memory
        self._library = ctypes.CDLL(str(library))
        for name in ("create", "cloned", "from_plan"):
            getattr(self._library, name).restype = ctypes.c_void_p
        for name in ("message", "kept_fields", "known_fields", "tensor_names", "output_shapes", "trtspec_error"):
            getattr(self._library, name).restype = ctypes.c_char_p
        self._library.workspace.restype = ctypes.c_uint64

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function of the driver; texts are str, handles come from `create`."""
        answer = getattr(self._library, name)(*map(_passed, arguments))
        return answer.decode() if isinstance(answer, bytes) else answer

    @property
    def message(self) -> str:
        text = self.call("message")
        assert isinstance(text, str)
        return text

    def create(self, plugin: str, fields: str) -> Plugin | None:
        handle = self.call("create", plugin, fields)
        return None if handle is None else Plugin(self, handle)


class Plugin:
    """One plugin of the driver."""

    def __init__(self, driver: Driver, handle: int) -> None:
        self._driver = driver
        self._handle = ctypes.c_void_p(handle)

    def __del__(self) -> None:
        self._driver.call("destroy", self._handle)

    def call(self, name: str, *arguments: Any) -> Any:
        return self._driver.call(name, self._handle, *arguments)

    def again(self, name: str) -> Plugin:
        """Return the plugin after `cloned` or `from_plan`."""
        return Plugin(self._driver, self.call(name))

    def launch(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray], types: str | None = None) -> int:
        """Run the plugin; inputs are described by their own types, or by `types` if numpy lacks one."""
        described = types or " ".join(f"{array.dtype}[{','.join(map(str, array.shape))}]" for array in inputs)
        memory = self._driver.memory()
        space = ctypes.c_void_p(memory.allocate(self.call("workspace", described)))
        answer = self.call("launch", described, memory.pointers(inputs), memory.pointers(outputs), space)
        memory.finish()
        assert isinstance(answer, int)
        return answer


def created(driver: Driver, plugin: str, fields: str) -> Plugin:
    made = driver.create(plugin, fields)
    assert made is not None, driver.message
    return made


def _passed(argument: Any) -> Any:
    return argument.encode() if isinstance(argument, str) else argument


def _addresses(addresses: Sequence[int]) -> Any:
    return (ctypes.c_void_p * len(addresses))(*addresses)
