# SPDX-License-Identifier: Apache-2.0
"""The guides (docs/get-started, docs/how-to, docs/concepts), and checks of commands that nothing here can run."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import pairwise, takewhile
from pathlib import Path
from unittest.mock import patch

from tests._support.pages import ROOT, SHELLS, Block, blocks_of, commands_in, read_command
from tests.doubles.docker_command import read_docker

FOLDERS = ("get-started", "how-to", "concepts")
GUIDES = tuple(
    path.relative_to(ROOT).as_posix() for folder in FOLDERS for path in sorted((ROOT / "docs" / folder).glob("*.md"))
)
FIRST = "docs/get-started/cpu.md"
HERE_DOCUMENT = re.compile(
    r"(?:cat > (?P<file>\S+) |(?P<other>[^\n]*))<<'?(?P<end>\w+)'?\n(?P<text>.*?)^(?P=end)\n", re.M | re.S
)
PLACEHOLDERS = {"my-recipe.yaml", "RECIPE.yaml"}  # the reader's own
REMOTE = ("ssh",)


def blocks(*languages: str) -> list[Block]:
    """Return the blocks of all guides in some languages; by default those of commands."""
    return [block for page in GUIDES for block in blocks_of(page, *(languages or SHELLS))]


def here_documents(text: str) -> dict[str, str]:
    """Return the files that a shell text writes with `cat > FILE <<END`, and their content."""
    return {found["file"]: found["text"] for found in HERE_DOCUMENT.finditer(text) if found["file"]}


def recipes_written_by(page: str) -> dict[str, str]:
    """Return the recipes that a page writes, by file name."""
    written: dict[str, str] = {}
    for block in blocks_of(page, *SHELLS):
        written |= {name: text for name, text in here_documents(block.commands).items() if name.endswith(".yaml")}
    return written


def recipes_known_to(page: str) -> set[str]:
    """Return the names of the recipe files that a page or one of its commands writes."""
    known = set(recipes_written_by(page))
    for block in blocks_of(page, *SHELLS):
        for words in simple_commands(block):
            pairs = pairwise(words)
            known |= {value for option, value in pairs if option in ("--output", "--out", "-o")}
            known |= {f"{words[at + 1]}.yaml" for at, word in enumerate(words) if word == "--name" and "init" in words}
    return known


def simple_commands(block: Block) -> Iterator[list[str]]:
    """Yield the commands of a block: without here-documents, and those that run elsewhere without `ssh HOST`."""
    text = HERE_DOCUMENT.sub("", block.commands)
    for words in commands_in(text):
        yield words[2:] if words[:1] and words[0] in REMOTE else words


def read_guide_command(words: list[str], recipes: set[str]) -> None:
    """Check one command of a guide; raises for what trtspec, make or docker would reject.

    `recipes` are the recipe files that exist for the reader at this point.
    """
    words = list(takewhile(lambda word: word not in (">", ">>", "<"), words))
    if words[:1] == ["docker"]:
        words = read_docker(words)
    named = {word for word in words if re.fullmatch(r"(\./)?[\w.-]+\.yaml", word)}
    if any(Path(word).name == "trtspec" for word in words[:3]):
        unknown = {Path(word).name for word in named} - recipes - PLACEHOLDERS
        assert not unknown, f"{unknown} is not written by the page: {words}"
    with patch.dict(os.environ):  # options such as --undecided set variables
        read_command([f"here/{word}" if word in named else word for word in words])
