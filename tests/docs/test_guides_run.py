# SPDX-License-Identifier: Apache-2.0
"""The guides' commands run in a clone, in their order; the first page's output is compared up to its numbers."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests import test_readme
from tests._support.guides import FIRST, GUIDES
from tests._support.pages import SHELLS, TIMEOUT_S, Block, blocks_of
from trtspec.cli.deploy import ROOT as AS_ROOT

clone, environment, stopped = test_readme.clone, test_readme.environment, test_readme.stopped
NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


@pytest.mark.integration
@pytest.mark.parametrize("page", [page for page in GUIDES if page != FIRST and blocks_of(page, *SHELLS)])
def test_blocks_of_guide_run(page: str, clone: Path, environment: dict[str, str]) -> None:
    test_readme.run_page(page, clone, environment)


@pytest.mark.triton
@pytest.mark.integration
def test_first_page_runs_and_prints_what_it_shows(clone: Path, environment: dict[str, str], stopped: None) -> None:
    alone = {**environment, "TRTSPEC_CACHE": str(clone / "cache")}  # other pages have built the same recipe
    printed = [run(block, clone, alone) for block in blocks_of(FIRST, *SHELLS)]
    triton, openai = next(text for text in printed if '"text_output"' in text).splitlines()
    text = json.loads(openai)["choices"][0]["text"]
    assert json.loads(triton)["text_output"] == text
    shown = "".join(block.text for block in blocks_of(FIRST, "json"))
    assert json.loads(shown)["text_output"] == text
    assert any(output.startswith(text) and "num_draft_tokens" in output for output in printed)


def run(block: Block, directory: Path, environment: dict[str, str]) -> str:
    """Run a block and return its output, which in `console` blocks must be the shown one."""
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block.commands], cwd=directory, env=environment, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{block}\n{block.text}\n{done.stdout}"
    printed = done.stdout.replace(f"warning: {AS_ROOT}\n", "")
    if block.language == "console":
        shown = "".join(line for line in block.text.splitlines(keepends=True) if not line.startswith(("$ ", "> ")))
        pattern = re.escape(without_numbers(shown)).replace(r"\.\.\.", ".*")
        assert re.fullmatch(pattern, without_numbers(printed), re.DOTALL), f"{block}\n{block.text}\n{printed}"
    return printed


def without_numbers(text: str) -> str:
    """Return a text without progress and moved ports; numbers, digests and the verdict, which vary, are replaced."""
    text = re.sub(r"^  (?:ports .*|.*s left|still running after .*)\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"^(?:Ship it|Not decided|Do not ship).*$", "VERDICT", text, flags=re.MULTILINE)
    return re.sub(" +", " ", NUMBER.sub("N", re.sub(r"[0-9a-f]{12,64}", "N", text)))
