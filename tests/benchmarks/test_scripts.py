# SPDX-License-Identifier: Apache-2.0
"""Every benchmark can be started: what it takes from the others and from the package is there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
IMPORT_ALL = """
import importlib, pathlib, sys
names = sorted(path.stem for path in pathlib.Path(sys.path[0]).glob("[a-z]*.py"))
for name in names:
    importlib.import_module(name)
print(*names)
"""


@pytest.mark.slow
def test_every_script_imports(tmp_path: Path) -> None:
    loader = tmp_path / "load.py"
    loader.write_text(f"import sys\nsys.path[0] = {str(ROOT / 'benchmarks')!r}\n{IMPORT_ALL}")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, loader], capture_output=True, text=True, check=False, timeout=120, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert {"convert", "methods", "quickstart", "profiles"} <= set(done.stdout.split())
