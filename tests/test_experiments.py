# SPDX-License-Identifier: Apache-2.0
"""Pages of experiments name tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "benchmarks" / "experiments").glob("*.md"))
TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+)(…?))?`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_tests_named_by_a_page_exist(page: Path) -> None:
    missing = [found[0] for found in TEST.finditer(page.read_text()) if not exists(*found.groups())]
    assert missing == []


def exists(file: str, name: str | None, cut: str | None) -> bool:
    path = ROOT / file
    end = "" if cut else r"\b"
    return path.is_file() and (name is None or bool(re.search(rf"^\s*(def|class) {name}{end}", path.read_text(), re.M)))
