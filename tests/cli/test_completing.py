# SPDX-License-Identifier: Apache-2.0
"""Shell completions, and their insertion by a real bash."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Run
from trtspec.core.paths import recipes_dir, state_dir
from trtspec.core.registry import discover
from trtspec.methods.base import ATTRIBUTE, PACKAGE
from trtspec.planning.completion import described_values, override_keys
from trtspec.recipe.load import load_recipe

PROGRAMS = str(Path(sys.executable).parent)
METHODS = sorted(discover(PACKAGE, ATTRIBUTE))

Ask = Callable[..., list[str]]


@pytest.fixture
def ask(trtspec: Run, workplace: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Return the completions of the last word, with words split as in bash."""

    def asked(*words: str) -> list[str]:
        monkeypatch.setenv("_TRTSPEC_COMPLETE_KEY", "")
        monkeypatch.setenv("_TRTSPEC_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", "\n".join(("trtspec", *words)))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        answered = trtspec()
        assert answered.err == ""
        return answered.out.split()

    return asked


def deploy(name: str) -> None:
    root = state_dir() / "deployments" / name
    root.mkdir(parents=True)
    (root / "state.json").write_text("{}")


def test_command_names_are_completed(ask: Ask) -> None:
    assert ask("prune") == ["prune-layers", "prune-vocab"]


def test_shipped_and_local_recipes_are_completed(ask: Ask, workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (workplace / "mine.yaml").touch()
    shipped = [str(path) for path in recipes_dir().glob("*.yaml")]
    assert set(ask("check", "")) == {"mine.yaml", *shipped}
    assert ask("check", "mi") == ["mine.yaml"]
    assert ask("compare", "mine.yaml", str(recipes_dir() / "quickstart-m")) == [
        f"{recipes_dir()}/quickstart-medusa.yaml"
    ]
    monkeypatch.chdir(recipes_dir().parent)
    assert ask("plan", "recipes/quickstart-n") == ["recipes/quickstart-ngram.yaml"]


def test_override_keys_are_completed(ask: Ask) -> None:
    keys = ask("check", "r.yaml", "--set", "speculation.d")
    assert "speculation.draft_len=" in keys
    assert "speculation.draft.model=" in keys
    assert "speculation.draft=" not in keys
    assert ask("check", "--set", "engine.max_batch") == ["engine.max_batch_size=", "engine.max_batch_size=8"]
    options = ask("check", "--set", "speculation.options.m")
    assert {"speculation.options.min_match=", "speculation.options.max_match="} <= set(options)
    assert ask("check", "--set", "speculation.sch") == ["speculation.schedule="]  # list items are not separate paths


@pytest.mark.slow
def test_override_values_are_completed(ask: Ask) -> None:
    assert ask("check", "r.yaml", "--set", "speculation.method", "=") == METHODS
    assert ask("check", "r.yaml", "--set", "speculation.method", "=", "med") == ["medusa"]
    assert ask("check", "--set", "gates.lossless", "=", "") == ["true", "false"]
    assert ask("check", "--set", "speculation.options.lossy", "=", "t") == ["true"]
    assert "h200" in ask("check", "--set", "a", "=", "b", "--set", "engine.gpu", "=", "h")
    assert ask("check", "--set", "nosuch", "=", "x") == []


def test_zsh_completes_a_value_within_one_word(trtspec: Run, workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_TRTSPEC_COMPLETE", "complete_zsh")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", "trtspec check --set speculation.method=me")
    answered = trtspec()
    assert '"speculation.method=medusa":"Medusa heads' in answered.out
    assert "ngram" not in answered.out


def test_argument_after_overrides_is_completed(ask: Ask, workplace: Path) -> None:
    (workplace / "mine.yaml").touch()
    assert ask("check", "--set", "a", "=", "b", "mi") == ["mine.yaml"]


def test_deployment_names_are_completed(ask: Ask) -> None:
    assert ask("status", "") == []
    deploy("one")
    deploy("other")
    for command in ("status", "stop", "bench"):
        assert ask(command, "o") == ["one", "other"]
    assert ask("bench", "x", "--baseline", "ot") == ["other"]


def test_unreadable_deployments_give_no_completions(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object) -> None:
        raise PermissionError(13, "denied")

    monkeypatch.setattr("trtspec.deployment.journal.deployment_names", denied)
    assert ask("status", "o") == []


@pytest.mark.slow
def test_every_completed_override_is_valid(recipe: Path) -> None:
    assert len(override_keys("")) > 50
    for key in override_keys(""):
        for value in described_values(key):
            if not key.startswith("speculation."):  # keys of this section depend on each other
                assert load_recipe(recipe, [f"{key}={value}"])


@pytest.mark.slow
@pytest.mark.parametrize("words", [("--set", "engine.backend", "="), ("status", ""), ("recipes/q",)])
def test_completion_imports_no_heavy_modules(words: tuple[str, ...], workplace: Path) -> None:
    start = "import sys; from trtspec.cli.app import main"
    code = f"{start}\ntry: main()\nfinally: print(*sys.modules)"
    given = ("trtspec", *(() if words[0] == "status" else ("check",)), *words)
    asked = {"_TRTSPEC_COMPLETE": "complete_bash", "COMP_WORDS": "\n".join(given), "COMP_CWORD": str(len(given) - 1)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | asked, capture_output=True, text=True, timeout=60, check=True
    )
    loaded = set(done.stdout.split())
    assert "trtspec.cli.completing" in loaded
    assert not loaded & {"torch", "numpy", "transformers", "rich.table", "google.protobuf"}


# Tests with a real shell

SETUP = """PS1=; bind 'set enable-bracketed-paste off'; bind 'set bell-style none'
eval "$(_TRTSPEC_COMPLETE=source_bash trtspec)"
trtspec() { printf '<%s>' "$@"; printf ' end\\n'; }
printf '%s\\n' ready
"""


def typed_in_bash(pieces: list[tuple[str, str]], folder: Path) -> str:
    """Return the words that a command receives; each piece is the typed text and the expected end of the line."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "PATH": f"{PROGRAMS}:{os.environ['PATH']}", "TERM": "dumb", "COLUMNS": "500"}
    shell = subprocess.Popen(
        ["bash", "--norc", "--noprofile", "-i"], stdin=theirs, stdout=theirs, stderr=theirs, env=environment, cwd=folder
    )
    os.close(theirs)
    try:
        os.write(ours, SETUP.encode())
        read_until(ours, "\nready\r\n")
        for typed, shown in (*pieces, ("\n", " end\r\n")):
            os.write(ours, typed.encode())
            said = read_until(ours, shown)
    finally:
        shell.kill()
        shell.wait(10)
        os.close(ours)
    return said.rstrip().removesuffix(" end").rpartition("\n")[2]


def read_until(descriptor: int, end: str, seconds: float = 60) -> str:
    said, limit = "", time.monotonic() + seconds
    while not said.endswith(end):
        ready, _, _ = select.select([descriptor], [], [], max(0, limit - time.monotonic()))
        assert ready, f"incomplete output of bash: {said!r}"
        said += os.read(descriptor, 65536).decode()
    return said


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        ([("trtspec insp\t", "inspect ")], "<inspect>"),
        ([("trtspec check mi\t", "mine.yaml ")], "<check><mine.yaml>"),
        (
            [("trtspec check mine.yaml --set speculation.met\t", ".method="), ("med\t", "medusa ")],
            "<check><mine.yaml><--set><speculation.method=medusa>",
        ),
        (
            [("trtspec check --set engine.gpu=h20\t", "h200 "), ("mi\t", "mine.yaml ")],
            "<check><--set><engine.gpu=h200><mine.yaml>",
        ),
        ([("trtspec stop on\t", "one ")], "<stop><one>"),
    ],
)
def test_bash_inserts_the_completion(pieces: list[tuple[str, str]], words: str, workplace: Path) -> None:
    (workplace / "mine.yaml").touch()
    deploy("one")
    assert typed_in_bash(pieces, workplace) == words
