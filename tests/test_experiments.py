# SPDX-License-Identifier: Apache-2.0
"""Pages of experiments name tests that exist, and the index lists every page once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXPERIMENTS = ROOT / "benchmarks" / "experiments"
PAGES = sorted(EXPERIMENTS.glob("*.md"))
TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+)(…?))?`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_tests_named_by_a_page_exist(page: Path) -> None:
    missing = [found[0] for found in TEST.finditer(page.read_text()) if not exists(*found.groups())]
    assert missing == []


def test_index_lists_every_page_once() -> None:
    listed = re.findall(r"^\| \[[\w-]+\]\(([\w-]+\.md)\) \|", (EXPERIMENTS / "README.md").read_text(), re.M)
    assert sorted(listed) == [page.name for page in PAGES if page.name != "README.md"]


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "README.md"], ids=lambda page: page.stem)
def test_page_begins_with_title_and_question(page: Path) -> None:
    assert re.match(r"# [^\n]+\n\n\*\*Question\.\*\* ", page.read_text())


def exists(file: str, name: str | None, cut: str | None) -> bool:
    path = ROOT / file
    end = "" if cut else r"\b"
    return path.is_file() and (name is None or bool(re.search(rf"^\s*(def|class) {name}{end}", path.read_text(), re.M)))
