# SPDX-License-Identifier: Apache-2.0
"""Sources that are cited say at which commit they were read, and those that were found stale are cited no more."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from trtspec.core.paths import recipes_dir

ROOT = Path(__file__).parents[1]
# What said less than a newer source, or what no release has, by the file that cited it.
STALE = {
    "trtspec/backends/vllm": "vllm_backend:src/model.py@8de0c14",  # its import is in none of the wheels; @00ea75bc
    "trtspec/backends/tensorrt_llm/specs.py": "examples/medusa/README.md",  # speculative-decoding.md@28af34e8
}


def texts(place: Path) -> str:
    """Return a file, or all files below a directory, as one line with single spaces and no signs of comments."""
    files = [place] if place.is_file() else [path for path in sorted(place.rglob("*")) if path.is_file()]
    whole = "\n".join(path.read_text(errors="replace") for path in files if path.suffix != ".pyc")
    return " ".join(re.sub(r"^\s*#", "", whole, flags=re.MULTILINE).split())


@pytest.mark.parametrize("place", STALE)
def test_stale_source_is_not_cited(place: str) -> None:
    assert STALE[place] not in texts(ROOT / place)


def test_spec_bench_figure_names_the_commit_of_its_table() -> None:
    """Its tables differ: EAGLE is 2.10 times as fast in one and 2.29 in another."""
    found = [path.stem for path in recipes_dir().glob("*.yaml") if "hemingkx/Spec-Bench" in path.read_text()]
    assert "vicuna-7b-medusa" in found
    for name in found:
        text = texts(recipes_dir() / f"{name}.yaml")
        assert text.count("hemingkx/Spec-Bench") == text.count("hemingkx/Spec-Bench Leaderboard.md@09244ff3"), name
