# SPDX-License-Identifier: Apache-2.0
"""The parts of a run on a GPU machine, in order, with their time limits."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# kept between runs: unpacked wheels, compiled kernels, logs
WORK = ROOT / "build" / "gpu"
LIBRARY = WORK / "libtrtspec.so"

KERNEL_TESTS = ("tests/plugins/test_cuda.py",)
PLUGIN_TESTS = ("tests/plugins/test_tensorrt_gpu.py",)
ENGINE_TESTS = (
    "tests/engine/test_gpu.py",
    "tests/engine/test_gpu_methods.py",
    "tests/engine/test_gpu_fp8.py",
    "tests/engine/test_calibration.py",
)
SANITIZERS = ("memcheck", "racecheck", "synccheck")
SANITIZER_TEST = "test_compute_sanitizer_reports_no_errors"


@dataclass(frozen=True)
class Part:
    """A command and its requirements.

    `{seconds}` in the command is replaced by the remaining time, `{report}` by its report file. `until` is its deadline
    in seconds after the start of its group, so unused time passes to the next part. `needs` are requirements that
    `probe` checks; `tests` is whether the report is pytest's.
    """

    name: str
    group: str
    until: float
    command: tuple[str, ...]
    needs: tuple[str, ...]
    tests: bool = False


def parts(python: str, architecture: str = "", workers: int = 1) -> list[Part]:
    """Return all parts; an `architecture` adds a separate group that compiles for it, with or without a GPU.

    The kernels' and the engine's tests run in `workers` processes, which share the GPU.
    """
    build = (python, "-m", "benchmarks.gpu.build", *([architecture] if architecture else []))
    engine = (python, "-m", "benchmarks.gpu.engine", "--seconds", "{seconds}", "--out", "{report}")
    recipes = (python, "-m", "benchmarks.gpu.recipes", "--seconds", "{seconds}", "--out", "{report}")
    verify = (python, "benchmarks/verify.py", "--device", "cuda", "--library", str(LIBRARY))
    gpu, sanitizers = ("packages", "torch", "gpu"), f"{SANITIZER_TEST} and ({' or '.join(SANITIZERS)})"
    tests = (*gpu, "pytest")
    return [
        Part("build", "build", 1200, build, ("packages", "nvcc"))
        if architecture
        else Part("build", "tests", 170, build, (*gpu, "nvcc")),
        Part("kernels", "tests", 270, _pytest(python, KERNEL_TESTS, f"not {SANITIZER_TEST}", workers), tests, True),
        Part("plugin", "tests", 300, _pytest(python, PLUGIN_TESTS), tests, True),
        Part(
            "sanitizer",
            "tests",
            350,
            _pytest(python, KERNEL_TESTS, sanitizers, workers),
            (*tests, "compute-sanitizer"),
            True,
        ),
        Part("verify", "tests", 450, (*verify, "--seconds", "{seconds}", "--out", "{report}"), gpu),
        Part("engine-tests", "tests", 530, _pytest(python, ENGINE_TESTS, "", workers), (*tests, "transformers"), True),
        Part("engine", "engine", 530, engine, gpu),
        Part("recipes", "recipes", 530, recipes, (*gpu, "transformers")),
    ]


def environment(site: Path) -> dict[str, str]:
    """Return the environment of every part: this checkout and the unpacked wheels first, CUDA's tools on PATH."""
    tools = [os.environ.get("CUDA_HOME", ""), "/usr/local/cuda"]
    paths = [os.environ.get("PATH", os.defpath), *(f"{root}/bin" for root in tools if root)]
    return {
        **os.environ,
        "PATH": os.pathsep.join(paths),
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(site)]),
        "PYTHONUNBUFFERED": "1",
        "HF_HUB_OFFLINE": "1",
        "TRTSPEC_CACHE": str(WORK / "cache"),
        "TRTSPEC_TEST_LIBRARY": str(LIBRARY),
    }


def _pytest(python: str, files: tuple[str, ...], chosen: str = "", workers: int = 1) -> tuple[str, ...]:
    plugin = ("-p", "benchmarks.gpu.pytest_report", "--gpu-report", "{report}")
    choice = ("-k", chosen) if chosen else ()
    beside = ("-n", str(workers)) if workers > 1 else ()
    return (python, "-m", "pytest", "-m", "gpu", "--strict-hw", "--durations=15", *beside, *plugin, *choice, *files)
