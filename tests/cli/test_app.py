# SPDX-License-Identifier: Apache-2.0
"""Common behaviour of all commands: help, JSON on stdout, exit codes, plain text without a terminal, light imports."""

from __future__ import annotations

import io
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Run
from trtspec import __version__
from trtspec.cli.app import all_commands, command_name
from trtspec.cli.render import print_json

COMMANDS = sorted(map(command_name, all_commands()))
HEAVY = ("torch", "transformers", "tritonclient", "tritonserver", "google.protobuf")


def test_command_names_match_the_list() -> None:
    assert " ".join(COMMANDS) == (
        "advise baseline bench build build-job cache check ci compare convert-draft datasets deploy doctor generate "
        "history init inspect list logs metrics migrate plan plugins profile promote prune-layers prune-vocab ps pull "
        "push readiness recipes report rm rollback schema search-skips sign status stop train tune verify version"
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_command_help_has_an_example(command: str, trtspec: Run) -> None:
    shown = trtspec(command, "--help")
    assert shown.code == 0
    assert f"Example: trtspec {command}" in shown.out
    assert "--json" in shown.out


def test_help_lists_every_command(trtspec: Run) -> None:
    shown = trtspec("-h")
    assert shown.code == 0
    for command in COMMANDS:
        assert f"\n  {command} " in shown.out


def test_version_option_prints_the_version(trtspec: Run) -> None:
    shown = trtspec("--version")
    assert (shown.code, shown.out) == (0, f"trtspec {__version__}\n")


def test_wrong_usage_is_an_error_on_stderr(trtspec: Run) -> None:
    for arguments, complaint in (
        (("chek", "x"), "No such command 'chek'"),
        (("check",), "Missing argument 'RECIPE'"),
        (("check", "a", "--nosuch"), "No such option: --nosuch"),
        (("bench", "a", "--runs", "0"), "Invalid value for '--runs': must be at least 1"),
    ):
        refused = trtspec(*arguments)
        assert refused.code == 1
        assert refused.out == ""
        assert complaint in refused.err


def documents(artifact: Path) -> dict[str, tuple[tuple[object, ...], set[str]]]:
    """Return {command: (arguments, keys of its JSON document)}."""
    recipe = artifact.parents[1] / "recipe.yaml"
    speedup = {"speedup", "speedup_interval", "speedup_total"}
    statistics = "text token_ids prompt_tokens new_tokens drafted accepted acceptance acceptance_rate mean_accepted_len"
    statistics += " accepted_by_position"
    return {
        "check": ((recipe,), {"ok", "problems", "recipes"}),
        "plan": (
            (recipe,),
            {
                "name",
                "recipe",
                "backend",
                "speculation",
                "keys_are_final",
                "steps",
                "memory",
                "disk",
                "downloads",
                "predicted",
                "notes",
                "recipes",
            },
        ),
        "compare": ((recipe, artifact), {"a", "b", "differences", "same", "not_compared", "effects"}),
        "build": ((recipe,), {"name", "artifact", "manifest", "status", "steps", "seconds", "recipes"}),
        "verify": (
            (artifact, "--max-tokens", 4),
            {"ok", "acceptance", "checks", "left_out", "manifest", "warnings", *speedup},
        ),
        "generate": (
            (artifact, "-p", "the", "--max-tokens", 4),
            {*statistics.split(), "finish_reason", "seconds", "tokens_per_s"},
        ),
        "bench": (
            (artifact, "--runs", 1, "--max-tokens", 2),
            {
                *("decision", "verdict", "name", "manifest", "warnings", "prompts", "max_tokens", "acceptance"),
                *("baseline", "speculative", "identical_texts", *speedup),
            },
        ),
        "advise": (
            ("--concurrency", 2),
            {"speculate", "decided_by", "methods", "methods_by", "first", "rules", "not_told", "answers", "notes"},
        ),
        "baseline": (
            (artifact, "--runs", 1, "--max-tokens", 2),
            {
                *(
                    "kind",
                    "time",
                    "name",
                    "manifest",
                    "target",
                    "engine",
                    "machine",
                    "versions",
                    "prompts",
                    "max_tokens",
                ),
                *("runs", "new_tokens", "tokens_per_s", "median_tokens_per_s", "request_s", "ms_per_token", "samples"),
            },
        ),
        "readiness": ((artifact,), {"name", "artifact", "manifest", "missing", "rows"}),
        "inspect": (
            (artifact,),
            {
                "kind",
                "name",
                "backend",
                "method",
                "draft_len",
                "acceptance",
                "files",
                "bytes",
                "tools",
                "steps",
                "end_ids",
            },
        ),
        "search-skips": (
            (recipe, "--num-prompts", 2, "--max-tokens", 2, "--iterations", 2),
            {"name", "candidates", "places", "tried", "seconds", "speculation", "export"},
        ),
        "cache": (
            ("--verify",),
            {
                *("ok", "root", "bytes", "resumable_bytes", "entries", "recipes", "problems", "removed"),
                *("dry_run", "freed_bytes", "linked_bytes", "pulled", "removed_pulled"),
            },
        ),
        "recipes": ((), {"recipes"}),
        "schema": ((), {"schema"}),
    }


@pytest.mark.integration
def test_json_is_one_document_on_stdout(artifact: Path, trtspec: Run) -> None:
    for command, (arguments, keys) in documents(artifact).items():
        done = trtspec(command, *arguments, "--json")
        assert done.code == 0, (command, done.err)
        assert set(done.document) == keys | {"format_version"}, command
        shown_anyway = "" if command in ("build", "search-skips") else done.err  # these two show progress
        assert shown_anyway == "", command
        assert "\x1b" not in done.err


@pytest.mark.slow
def test_plan_and_build_report_the_same_steps(recipe: Path, trtspec: Run) -> None:
    planned = trtspec("plan", recipe, "--json").document
    built = trtspec("build", recipe, "--json").document
    names = ["convert-target", "convert-draft", "copy-tokenizer", "copy-prompts", "emit-repository"]
    assert [step["name"] for step in planned["steps"]] == names
    assert [(step["name"], step["status"]) for step in built["steps"]] == [(name, "built") for name in names]
    assert [step["key"] for step in planned["steps"]] == [step["key"] for step in built["steps"]]
    assert set(planned["steps"][0]) == {
        "name",
        "key",
        "status",
        "why",
        "command",
        "key_parts",
        "read_bytes",
        "write_bytes",
        "expected_seconds",
    }
    assert set(built["steps"][0]) == {"name", "key", "status", "seconds"}
    (gpu,) = planned["memory"]["gpus"]
    parts = [gpu[f"{part}_bytes"] for part in ("weights", "kv_cache", "draft", "activation")]
    assert all(parts)
    assert gpu["total_bytes"] == sum(parts) < gpu["limit_bytes"]
    assert planned["backend"]["name"] == "embedded"
    assert planned["backend"]["why"]


def test_error_is_a_json_document_too(recipe: Path, trtspec: Run) -> None:
    failed = trtspec("generate", "nosuch", "-p", "x", "--json")
    assert failed.code == 1
    assert failed.document == {
        "format_version": 1,
        "ok": False,
        "error": {
            "message": "no artifact: the directory does not exist",
            "where": "nosuch",
            "hint": "build one with trtspec build RECIPE",
            "exit_code": 1,
        },
    }
    assert failed.err == (
        "error: nosuch: no artifact: the directory does not exist\nhint: build one with trtspec build RECIPE\n"
    )


@pytest.mark.slow
def test_output_is_plain_without_a_terminal(recipe: Path, trtspec: Run) -> None:
    for command in ("check", "plan", "build"):
        done = trtspec(command, recipe)
        assert done.out
        assert not {"\x1b", "\r"} & {*done.out, *done.err}


def stderr_on_terminal(*arguments: object, **environment: str) -> str:
    """Return the output of stderr on a terminal."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "trtspec", *map(str, arguments)]
    plain = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR")}
    subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=theirs,
        env={**plain, "TERM": "xterm-256color", **environment},
        timeout=30,
        check=False,
    )
    os.close(theirs)
    return b"".join(_read_all(ours)).decode()


def _read_all(descriptor: int) -> Iterator[bytes]:
    while True:
        try:
            chunk = os.read(descriptor, 65536)
        except OSError:  # raised by Linux if the other end is closed
            return
        yield chunk


@pytest.mark.slow
def test_colour_is_only_on_terminals_and_can_be_disabled(workplace: Path) -> None:
    assert "\x1b[31m" in stderr_on_terminal("inspect", "nosuch")
    assert "\x1b[3" not in stderr_on_terminal("inspect", "nosuch", NO_COLOR="1")


def test_bug_shows_its_traceback(trtspec: Run, workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr("trtspec.planning.doctor.probe_machine", broken)
    failed = trtspec("doctor")
    assert failed.code == 70
    assert failed.out == ""
    assert "ZeroDivisionError: ours" in failed.err
    assert failed.err.endswith("this is a bug in trtspec; please report it with the lines above\n")


def test_interrupt_exits_with_130(trtspec: Run, workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trtspec.planning.doctor.probe_machine", lambda: os.kill(os.getpid(), signal.SIGINT))
    stopped = trtspec("doctor")
    assert (stopped.code, stopped.out, stopped.err) == (130, "", "interrupted\n")


def test_json_document_is_flushed_immediately(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that stays in the foreground writes its JSON document immediately."""
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw))
    print_json({"a": 1})
    assert json.loads(raw.getvalue()) == {"a": 1}


@pytest.mark.slow
def test_closed_stdout_is_not_reported_as_a_bug(workplace: Path) -> None:
    command = [sys.executable, "-m", "trtspec", "cache", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        said = process.stderr.read()
        assert process.wait(30) == 1
    assert said == ""


IMPORTS = """
import json, sys
from trtspec.cli.app import main
for arguments in json.loads(sys.argv[1]):
    try:
        main(arguments)
    except SystemExit as ended:
        assert not ended.code, (arguments, ended.code)
print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""


def modules_after(*commands: list[Any]) -> set[str]:
    """Return the modules that a new process has imported after running commands."""
    arguments = [sys.executable, "-c", IMPORTS, json.dumps(commands, default=str)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=True)
    return set(json.loads(done.stderr.splitlines()[-1]))


@pytest.mark.slow
def test_lightweight_commands_import_no_heavy_modules(artifact: Path) -> None:
    recipe = artifact.parents[1] / "recipe.yaml"
    loaded = modules_after(["check", recipe], ["plan", recipe], ["build", recipe], ["inspect", artifact])
    assert "trtspec.planning.pipeline" in loaded
    assert not loaded & {*HEAVY[:4]}


@pytest.mark.slow
@pytest.mark.parametrize("before", [["--help"], ["-h"], ["-v", "--help"], []])
def test_root_help_lists_commands_regardless_of_following_arguments(trtspec: Run, before: list[str]) -> None:
    ended = trtspec(*before, *(["check"] if before else []))
    assert {"bench", "check", "convert-draft", "verify"} <= set((ended.out + ended.err).split())


@pytest.mark.parametrize("before", [["-v"], ["--verbose", "-v"], ["--"]])
def test_command_is_found_after_global_options(trtspec: Run, before: list[str]) -> None:
    assert trtspec(*before, "check", "quickstart").code == 0


def test_command_imports_no_other_command() -> None:
    loaded = modules_after(["check", "quickstart"])
    assert "trtspec.cli.check" in loaded
    assert not loaded & {"trtspec.cli.bench", "trtspec.cli.deploy", "trtspec.cli.train"}


def test_help_imports_no_heavy_modules() -> None:
    loaded = modules_after(["--help"])
    assert "typer" in loaded
    assert not loaded & {*HEAVY, "numpy", "pydantic", "yaml", "rich.console", "tokenizers"}


@pytest.mark.parametrize("variable", ["TRTSPEC_CACHE", "TRTSPEC_STATE"])
def test_doctor_reports_directories_that_cannot_be_written(
    variable: str, trtspec: Run, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "/proc/nosuch")
    found = trtspec("doctor", "--json")
    assert found.code in (0, 1)
    assert set(found.document) == {"format_version", "ok", "findings"}
    assert found.document["ok"] == (found.code == 0)
    name = variable.removeprefix("TRTSPEC_").lower()
    assert next(each for each in found.document["findings"] if each["name"] == name)["detail"].startswith("/proc")
