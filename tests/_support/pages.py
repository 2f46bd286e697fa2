# SPDX-License-Identifier: Apache-2.0
"""Extract, run and check the code blocks of the project's pages.

An HTML comment in the line before a block restricts where it can be run:

    <!-- clone -->              only in a clone, for example if it needs the Makefile
    <!-- wheel -->              only where trtspec was installed from its wheel; without a comment, in both
    <!-- not run: REASON -->    never here: its commands are parsed, and its files must exist

`sh` blocks must succeed. In `console` blocks commands follow `$ `, and their output is compared, where `...` matches
any text.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import dropwhile, takewhile
from pathlib import Path
from typing import Any

from trtspec.cli.app import make_command
from trtspec.cli.deploy import ROOT as AS_ROOT
from trtspec.recipe.load import find_recipe

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))), "recipes/README.md")
SHELLS = ("sh", "bash", "console")
BLOCK = re.compile(
    r"(?:^<!--(?P<marker>[^\n]*)-->\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
MARKERS = ("", "clone", "wheel", "not run")
TOP = {path.name for path in ROOT.iterdir()} - {"build", "dist"}  # running the pages may have created these
STEPS = {";", "&&", "||", "|", "(", ")"}
TIMEOUT_S = 400


@dataclass(frozen=True)
class Block:
    """A fenced block: its page, line, and the content of the preceding comment."""

    page: str
    line: int
    language: str
    text: str
    marker: str
    reason: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def commands(self) -> str:
        """Return the shell text to run."""
        if self.language != "console":
            return self.text
        return "".join(line[2:] for line in self.text.splitlines(keepends=True) if line.startswith(("$ ", "> ")))


def blocks_of(page: str, *languages: str) -> list[Block]:
    """Return the blocks of a page in some languages."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = []
    for match in BLOCK.finditer(text):
        marker, _, reason = (part.strip() for part in (match["marker"] or "").partition(":"))
        line = text.count("\n", 0, match.start("language")) + 1
        found.append(Block(page, line, match["language"], match["text"], marker, reason))
    return [block for block in found if block.language in languages]


def run_block(block: Block, directory: Path, environment: Mapping[str, str]) -> None:
    """Run a block; fails if a command fails, or if its output differs from the page."""
    strictly = [] if block.language == "console" else ["-euo", "pipefail"]
    run = subprocess.run(
        ["bash", *strictly, "-c", block.commands], cwd=directory, env=environment, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert run.returncode == 0 or not strictly, f"{block}\n{block.text}\n{run.stdout}"
    if not strictly:
        said = run.stdout.replace(f"warning: {AS_ROOT}\n", "")  # pages do not show it
        assert re.fullmatch(_expected(block), said, re.DOTALL), f"{block}\n{block.text}\n{run.stdout}"


def _expected(block: Block) -> str:
    shown = "".join(line for line in block.text.splitlines(keepends=True) if not line.startswith(("$ ", "> ")))
    return re.escape(shown).replace(r"\.\.\.", ".*")


def read_block(block: Block) -> None:
    """Check the commands of a block that is not run: trtspec's parser, the Makefile, and existing files."""
    for words in commands_in(block.commands):
        read_command(words)
        for word in words[1:]:
            first = word.partition("/")[0]
            assert "/" not in word or first not in TOP or (ROOT / word).exists(), f"{block}: {word} does not exist"


def commands_in(text: str) -> Iterator[list[str]]:
    """Yield the simple commands of a shell text without here-documents, as lists of words."""
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.commenters = "#"
        lexer.whitespace_split = True  # 1,2,4 is one word, as in a shell
        words: list[str] = []
        for word in lexer:
            if word in STEPS:
                yield words
                words = []
            else:
                words.append(word)
        yield words


def read_command(words: list[str]) -> None:
    """Parse one trtspec or make command with its own parser or the Makefile; raises for unknown words."""
    words = list(dropwhile(lambda word: re.fullmatch(r"[A-Z_]+=.*", word), words))
    words = list(takewhile(lambda word: word not in (">", ">>", "<"), words))
    if words and Path(words[0]).name == "trtspec":
        name, *rest = words[1:]
        command = trtspec_commands()[name]
        given = command.make_context(name, rest).params.get("recipe") or ()
        for each in given if isinstance(given, list | tuple) else (given,):
            assert "/" in str(each) or find_recipe(Path(each)) != Path(each), f"no recipe {each}"
    elif words and words[0] == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert {word for word in words[1:] if "=" not in word} <= {*targets}, words


@cache
def trtspec_commands() -> dict[str, Any]:
    """Return trtspec's commands from its parser."""
    commands: dict[str, Any] = make_command().commands
    return commands


def commands_named(text: str) -> Iterator[list[str]]:
    """Yield the commands in a page's text: `trtspec ...` and `plan --json` in backquotes, as lists of words."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    for said in re.findall(r"`([^`\n]+)`", prose):
        words = said.split()
        ours = words[0] == "trtspec" and len(words) > 1
        if ours or (words[0] in trtspec_commands() and len(words) > 1 and ":" not in said):
            yield words[1:] if ours else words


def read_named(words: list[str]) -> None:
    """Check a command in a text against trtspec's parser: its name, its options and its number of arguments."""
    if words[0].startswith("-"):
        words = ["check", *words] if words == ["--help"] else words
        assert words[0] in ("check", "--version", "--install-completion", "--show-completion"), words
        return
    assert words[0] in trtspec_commands(), words
    parameters = trtspec_commands()[words[0]].params
    options = {name: each for each in parameters for name in each.opts if name.startswith("-")}
    rest, arguments = iter(words[1:]), 0
    for word in rest:
        if word.startswith("-"):
            assert word in {*options, "--help"}, words
            if word in options and not options[word].is_flag:
                next(rest, None)
        else:
            arguments += 1
    most = [each.nargs for each in parameters if each.param_type_name == "argument"]
    assert -1 in most or arguments <= sum(most), words
