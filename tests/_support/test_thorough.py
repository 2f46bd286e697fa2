# SPDX-License-Identifier: Apache-2.0
"""The list of tests that only `make test-all` runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests._support.thorough import listed

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("path", [path for path, _ in listed()])
def test_listed_path_and_test_exist(path: str) -> None:
    file, _, test = path.partition("::")
    assert (ROOT / file).exists()
    if not test:
        return
    name = test.partition("[")[0].rpartition("::")[2]  # without the class and the variant
    assert f"def {name}" in (ROOT / file).read_text(encoding="utf-8")


def test_list_has_no_duplicates_and_a_reason_for_each_path() -> None:
    paths = [path for path, _ in listed()]
    assert len({*paths}) == len(paths) > 30
    assert all(reason for _, reason in listed())


def test_summary_counts_deselected_tests_by_reason() -> None:
    tests = ("tests/report/test_browser.py", "tests/_support/test_skips.py")
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not thorough", *tests]
    alone = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}  # not xdist's worker
    done = subprocess.run(command, cwd=ROOT, env=alone, capture_output=True, text=True, timeout=120, check=False)
    assert "tests more" in done.stdout
    assert "a browser, a language server" in done.stdout
