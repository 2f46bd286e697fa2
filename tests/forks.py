# SPDX-License-Identifier: Apache-2.0
"""A process that runs commands in forks of itself: `python -m tests.forks` reads a job a line, and answers its exit code.

What takes long to import is imported before the first fork.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any


def serve() -> None:
    """Run jobs until there are no more."""
    for line in sys.stdin:
        job = json.loads(line)
        pid = os.fork()
        if pid == 0:
            os._exit(_run(job))
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


def _run(job: dict[str, Any]) -> int:
    os.chdir(job["directory"])
    os.environ.clear()
    os.environ.update(job["environment"])
    time.tzset()
    for descriptor, path in enumerate(job["streams"]):
        opened = os.open(path, os.O_RDWR)
        os.dup2(opened, descriptor)
        os.close(opened)
    is_terminal = os.isatty(1)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", buffering=1 if is_terminal else -1, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", closefd=False)  # noqa: SIM115
    try:
        _main(job["arguments"])
    except SystemExit as ended:
        code = ended.code
    else:
        code = 0
    sys.stdout.flush()
    sys.stderr.flush()
    return int(code or 0)


def _main(arguments: list[str]) -> None:
    from trtspec import paths
    from trtspec.cli.app import main

    # where recipes lie is shown; a checkout has a place of any length
    paths.PACKAGE = Path("trtspec/trtspec").absolute() if Path("trtspec").is_symlink() else paths.PACKAGE
    main(arguments)


if __name__ == "__main__":
    import torch
    import transformers.models.llama.modeling_llama  # noqa: F401

    import trtspec.cli.app  # noqa: F401

    torch.set_num_threads(1)
    serve()
