# SPDX-License-Identifier: Apache-2.0
"""A process that runs commands in forks of itself: it reads one job per line and writes exit codes.

Slow imports happen before the first fork. Facts about the machine are fixed here for all commands: memory, free disk
space, the results of `doctor`, the location of the recipes, and the responses of a server under load.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

WARM = (
    "torch",
    "transformers.models.llama.modeling_llama",
    "rich.console",
    "rich.progress",
    "trtspec.planning.check.recipe",
    "trtspec.planning.pipeline",
    "trtspec.planning.pipeline",
    "trtspec.planning.doctor",
    "trtspec.planning.inspection",
    "trtspec.planning.migration",
    "trtspec.planning.compare",
    "trtspec.planning.init.write",
    "trtspec.bench.verify",
    "trtspec.bench.bench",
    "trtspec.bench.artifact",
    "trtspec.bench.layer_search",
    "trtspec.deployment.base",
    "trtspec.engine.engine",
    "trtspec.kernels.build",
    "trtspec.cli.app",
    "tests.bench.load.by_rule",
)
SIZES = {"SC_PAGE_SIZE": 1 << 12, "SC_PHYS_PAGES": 24 << 18}  # 24 GiB
FOUND = (
    ("python", True, "3.11.7 on Linux x86_64", None),
    ("huggingface_hub", False, "not installed", "pip install 'trtspec[hub]'"),
    (
        "tritonserver",
        True,
        "/home/ada/venv/lib/python3.11/site-packages/pytriton/tritonserver/bin/tritonserver (nvidia-pytriton 0.7.0)",
        None,
    ),
    ("cache", True, "/home/ada/.cache/trtspec, 65.3 GiB free", None),
    ("gpu", True, "none; the torch engine uses the CPU", None),
    ("trtllm-build", True, "not on PATH; build engines on a machine that has it, or with engine.build.image", None),
)


class Usage(NamedTuple):
    """Return fixed disk usage."""

    total: int = 200 << 30
    used: int = 100 << 30
    free: int = 100 << 30


def serve() -> None:
    """Run jobs until there are no more."""
    for module in WARM:
        importlib.import_module(module)
    from trtspec.cli.app import make_command

    make_command()
    gc.collect()
    gc.freeze()  # otherwise the first collection of every child would copy all of it
    for line in sys.stdin:
        job = json.loads(line)
        pid = os.fork()
        if pid == 0:
            os._exit(_run(job))
        sys.stdout.write(f"{os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}\n")
        sys.stdout.flush()


def _run(job: dict[str, Any]) -> int:
    os.chdir(job["directory"])
    os.environ.clear()
    os.environ.update(job["environment"])
    time.tzset()
    for descriptor, path in enumerate(job["streams"]):
        opened = os.open(path, os.O_RDWR)
        os.dup2(opened, descriptor)
        os.close(opened)
    buffering = 1 if os.isatty(1) else -1
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", buffering=buffering, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", closefd=False)  # noqa: SIM115
    _replace_machine(Path("trtspec/trtspec"))
    from trtspec.cli.app import main

    try:
        main(job["arguments"])
    except SystemExit as ended:
        sys.stdout.flush()
        sys.stderr.flush()
        return int(ended.code or 0)
    raise AssertionError("every command exits")


def _replace_machine(package: Path) -> None:
    from tests.bench.load import by_rule
    from trtspec.bench.load import sweep
    from trtspec.bench.load.drivers import trtspec as driver
    from trtspec.core import paths
    from trtspec.core.installation import DoctorCheck
    from trtspec.planning import doctor

    paths.PACKAGE = package.absolute()
    sysconf = os.sysconf
    os.sysconf = lambda name: SIZES.get(str(name)) or sysconf(name)
    shutil.disk_usage = lambda path: Usage()  # type: ignore[assignment, return-value]
    doctor.probe_machine = lambda: [DoctorCheck(*found) for found in FOUND]
    sweep.find_arms, driver.DRIVER = by_rule.arms, lambda tokenizer, timeout_s: by_rule.answered
    sweep.work_ms = lambda: 12.5


if __name__ == "__main__":
    serve()
