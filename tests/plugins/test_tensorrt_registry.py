# SPDX-License-Identifier: Apache-2.0
"""The plugin library in the registries of real TensorRT runtimes, which do not need a GPU.

Each runtime has a separate environment (tests/engines), and each test a separate process, because a process cannot
unload libraries.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.engines import engine_python
from tests.plugins.tensorrt_driver import compile_driver

# The environment of each runtime, its Python package, and the major version of its interface.
RUNTIMES = {
    "tensorrt_lean_10": ("tensorrt_lean_bindings", 10),
    "tensorrt_lean_11": ("tensorrt_lean_bindings", 11),
    "tensorrt_rtx": ("tensorrt_rtx_bindings", 11),
}
ROOT = Path(__file__).parents[2]

PRELUDE = """
import ctypes, sys
import {runtime} as trt
from trtspec.kernels.bit_exact import DraftKind, Mode
from trtspec.kernels.tensorrt import ChainLayer, TreeLayer, create_plugin

library = sys.argv[1]
registry = trt.get_plugin_registry()

def open_library():
    return ctypes.CDLL(library, mode=ctypes.RTLD_LOCAL)

def load_library():
    handle = registry.load_library(library)
    assert handle is not None
    return handle

def names():
    return [creator.name for creator in registry.all_creators if creator.name.startswith("Trtspec")]
"""
BOTH = "['TrtspecVerifyChain', 'TrtspecVerifyTree']\n"


@dataclass(frozen=True)
class Runtime:
    """A TensorRT runtime, and the plugin library for it."""

    python: Path
    package: str
    library: Path

    def run(self, script: str) -> subprocess.CompletedProcess[str]:
        """Run a script after PRELUDE, in a process with this runtime."""
        done = subprocess.run(
            [self.python, "-c", PRELUDE.format(runtime=self.package) + script, self.library],
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        return done


@pytest.fixture(scope="module", params=RUNTIMES)
def runtime(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Runtime:
    package, major = RUNTIMES[request.param]
    python = engine_python(request.param)
    return Runtime(python, package, compile_driver(tmp_path_factory.mktemp("registry"), major))


def test_opened_library_registers_its_plugins(runtime: Runtime) -> None:
    """Open it with RTLD_LOCAL, as tritonserver does."""
    assert runtime.run("print(names()); open_library(); print(names())").stdout == "[]\n" + BOTH


def test_registry_loads_and_unloads_the_library(runtime: Runtime) -> None:
    script = "handle = load_library(); print(names()); registry.deregister_library(handle); print(names())"
    assert runtime.run(script).stdout == BOTH + "[]\n"


def test_registry_loads_an_already_open_library(runtime: Runtime) -> None:
    assert runtime.run("open_library(); load_library(); print(names())").stdout == BOTH


def test_registry_creators_create_plugins(runtime: Runtime) -> None:
    script = """
load_library()
chain = create_plugin(trt, ChainLayer(vocab=7, columns=8, draft_len=3))
tree = create_plugin(trt, TreeLayer(vocab=7, columns=8, nodes=3, mode=Mode.TYPICAL, alpha=0.5))
for plugin in (chain, tree):
    build = plugin.get_capability_interface(trt.PluginCapabilityType.BUILD)
    core = plugin.get_capability_interface(trt.PluginCapabilityType.CORE)
    print(core.plugin_name, core.plugin_version, repr(core.plugin_namespace), build.num_outputs)
"""
    assert runtime.run(script).stdout == "TrtspecVerifyChain 1 '' 4\nTrtspecVerifyTree 1 '' 4\n"


def test_rejection_without_a_logger_is_written_to_stderr(runtime: Runtime) -> None:
    done = runtime.run("open_library(); print(create_plugin(trt, ChainLayer(vocab=0, columns=8, draft_len=3)))")
    assert done.stdout == "None\n"
    assert done.stderr == "TrtspecVerifyChain: field vocab is 0, must be 1 to 262144\n"


def test_fields_stay_alive_until_the_plugin_has_read_them(runtime: Runtime) -> None:
    """Arrays created in between would reuse the memory of released values in numpy's cache of small blocks."""
    script = """
import gc
import numpy as np
from trtspec.kernels import tensorrt

get_registry, taken = trt.get_plugin_registry, []

class Registry:
    def get_creator(self, *arguments):
        gc.collect()
        taken.extend(np.full(1, 7, dtype) for dtype in (np.int32, np.float32) for _ in range(64))
        return get_registry().get_creator(*arguments)

load_library()
trt.get_plugin_registry = Registry
layer = TreeLayer(vocab=4999, columns=5000, nodes=3, mode=Mode.TYPICAL, threshold=0.5, alpha=0.25)
for _ in range(20):
    plugin = create_plugin(trt, layer)
    assert plugin is not None, "the fields were read as other values"
    runtime = plugin.get_capability_interface(trt.PluginCapabilityType.RUNTIME)
print("made")
"""
    assert runtime.run(script).stdout == "made\n"
