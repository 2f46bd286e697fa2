# SPDX-License-Identifier: Apache-2.0
"""The plugin library and TensorRT's real registry, which needs no GPU: it is found there however it was loaded.

In processes of their own, for what a process has loaded stays. Any of TensorRT's Python packages will do, in the major
version of the headers.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.plugins.tensorrt_driver import compile_driver, find_includes

RUNTIMES = ("tensorrt", "tensorrt_lean_bindings")  # the latter is what tensorrt_lean and tensorrt_lean_cu* are made of
ROOT = Path(__file__).parents[2]

PRELUDE = """
import ctypes, sys
import {runtime} as trt
from trtspec.kernels.exact import DraftKind, Mode
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


@pytest.fixture(scope="module")
def runtime() -> str:
    found = next((name for name in RUNTIMES if importlib.util.find_spec(name) is not None), None)
    if found is None:
        pytest.skip(f"none of {', '.join(RUNTIMES)} is installed")
    version = subprocess.check_output(
        [sys.executable, "-c", f"print(__import__('{found}').__version__)"], text=True, timeout=300
    )
    header = (find_includes()[0] / "NvInferVersion.h").read_text()
    major = re.search(r"define (?:NV_TENSORRT_MAJOR|TRT_MAJOR_ENTERPRISE) +(\d+)", header)
    assert major is not None
    if version.partition(".")[0] != major[1]:
        pytest.skip(f"{found} is {version.strip()}, the headers are of TensorRT {major[1]}")
    return found


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_driver(tmp_path_factory.mktemp("registry"))


def run(runtime: str, library: Path, script: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE.format(runtime=runtime) + script, str(library)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done


def test_a_program_that_opens_the_library_has_its_plugins(runtime: str, library: Path) -> None:
    """As tritonserver does, for itself alone."""
    assert run(runtime, library, "print(names()); open_library(); print(names())").stdout == "[]\n" + BOTH


def test_a_registry_loads_the_library_and_lets_it_go(runtime: str, library: Path) -> None:
    script = "handle = load_library(); print(names()); registry.deregister_library(handle); print(names())"
    assert run(runtime, library, script).stdout == BOTH + "[]\n"


def test_a_registry_loads_a_library_that_is_open_already(runtime: str, library: Path) -> None:
    assert run(runtime, library, "open_library(); load_library(); print(names())").stdout == BOTH


def test_the_registry_s_creators_make_plugins(runtime: str, library: Path) -> None:
    script = """
load_library()
chain = create_plugin(trt, ChainLayer(vocab=7, columns=8, draft_len=3))
tree = create_plugin(trt, TreeLayer(vocab=7, columns=8, nodes=3, mode=Mode.TYPICAL, alpha=0.5))
for plugin in (chain, tree):
    build = plugin.get_capability_interface(trt.PluginCapabilityType.BUILD)
    core = plugin.get_capability_interface(trt.PluginCapabilityType.CORE)
    print(core.plugin_name, core.plugin_version, repr(core.plugin_namespace), build.num_outputs)
"""
    assert run(runtime, library, script).stdout == "TrtspecVerifyChain 1 '' 4\nTrtspecVerifyTree 1 '' 4\n"


def test_a_refusal_is_said_where_nobody_gave_a_logger(runtime: str, library: Path) -> None:
    done = run(
        runtime, library, "open_library(); print(create_plugin(trt, ChainLayer(vocab=0, columns=8, draft_len=3)))"
    )
    assert done.stdout == "None\n"
    assert done.stderr == "TrtspecVerifyChain: field vocab is 0, must be 1 to 262144\n"
