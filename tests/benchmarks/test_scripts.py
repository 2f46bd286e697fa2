# SPDX-License-Identifier: Apache-2.0
"""Every benchmark can be imported: its imports from other benchmarks and the package exist."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Run

ROOT = Path(__file__).parents[2]
IMPORT_ALL = """
import importlib, pathlib, sys
names = sorted(path.stem for path in pathlib.Path(sys.path[0]).glob("[a-z]*.py"))
for name in names:
    importlib.import_module(name)
print(*names)
"""


@pytest.mark.slow
def test_every_script_can_be_imported(tmp_path: Path) -> None:
    loader = tmp_path / "load.py"
    loader.write_text(f"import sys\nsys.path[0] = {str(ROOT / 'benchmarks')!r}\n{IMPORT_ALL}")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, loader], capture_output=True, text=True, check=False, timeout=120, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert {"convert", "methods", "quickstart", "profiles"} <= set(done.stdout.split())


def test_names_imported_by_scripts_exist() -> None:
    late = {
        (node.module, alias.name)
        for path in (ROOT / "benchmarks").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("trtspec.")
        for alias in node.names
    }
    assert len(late) > 100
    assert [f"{module}.{name}" for module, name in sorted(late) if not has(module, name)] == []


def has(module: str, name: str) -> bool:
    """Return whether a module has a name, or a package has a submodule."""
    found = importlib.import_module(module)
    is_package = hasattr(found, "__path__")
    return hasattr(found, name) or (is_package and importlib.util.find_spec(f"{module}.{name}") is not None)


@pytest.mark.slow
@pytest.mark.integration
def test_quickstart_benchmark_measures_every_side(recipe: Path, trtspec: Run, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    assert trtspec("build", "quickstart", "--out", "quickstart").code == 0
    command = [sys.executable, ROOT / "benchmarks" / "quickstart.py", "--artifact", "quickstart", "--out", out]
    done = subprocess.run(
        [*command, "--runs", "1", "--prompts", "1"], capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert all(found["identical_texts"].values())
    assert all(value > 0 for value in (*found["median_tokens_per_s"].values(), *found["step_ms"].values()))
