# SPDX-License-Identifier: Apache-2.0
"""Commands start fast because they import only what they use."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trtspec.core.paths import recipes_dir

CODE = """
import sys
from trtspec.cli.app import main
try:
    main(sys.argv[1:])
finally:
    print(*sys.modules)
"""
CONVERTING = {"torch", "transformers", "numpy", "google.protobuf", "tritonclient"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "unwanted"),
    [
        ("--help", CONVERTING | {"pydantic", "rich", "yaml", "filelock", "trtspec.store"}),
        ("check", CONVERTING | {"rich.table", "rich.progress", "filelock", "trtspec.store.store"}),
        ("plan", CONVERTING | {"rich.progress"}),
        ("compare", CONVERTING | {"rich.progress"}),
        ("advise", CONVERTING | {"rich.progress"}),
    ],
)
def test_command_does_not_import_unneeded_modules(command: str, unwanted: set[str], tmp_path: Path) -> None:
    recipe = [str(recipes_dir() / "quickstart.yaml")] * {"--help": 0, "compare": 2}.get(command, 1)
    environment = {**os.environ, "TRTSPEC_CACHE": str(tmp_path)}
    argv = [sys.executable, "-c", CODE, command, *recipe]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True, timeout=300)
    imported = set(done.stdout.split())
    assert "trtspec.cli.app" in imported
    assert not imported & unwanted


@pytest.mark.slow
def test_gateway_and_text_generation_import_no_pydantic() -> None:
    """It is a third of the start of an entry, and two of a small model's."""
    code = "import sys, trtspec.serving.gateway.__main__, trtspec.engine.generation.text; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert "trtspec.serving.gateway.__main__" in done.stdout.split()
    assert "pydantic" not in done.stdout.split()
