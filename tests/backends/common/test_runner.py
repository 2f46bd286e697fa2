# SPDX-License-Identifier: Apache-2.0
"""Build tools that succeed, fail, time out or hang: the error messages, and that no process is left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.doubles.trouble import DEAF
from trtspec.backends.common.build_tools import Tool, run_tool
from trtspec.backends.tensorrt_llm.build import build_listener
from trtspec.core.errors import StepError, StepTimeout
from trtspec.core.processes import is_alive, start_time, wait_until
from trtspec.store.step import StepProgress

PATIENCE_S = 20.0
DEAF_FAMILY = f"""
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for new_session in (False, True):
    child = subprocess.Popen([sys.executable, "-c", {DEAF!r}], start_new_session=new_session)
    print(child.pid, flush=True)
print(os.getpid(), flush=True)
time.sleep(600)
"""


@pytest.fixture
def tool(tmp_path: Path) -> Callable[..., Tool]:
    """Return a tool that runs Python source."""

    def tool(code: str, timeout_s: float = PATIENCE_S, **options: Any) -> Tool:
        (tmp_path / "work").mkdir(exist_ok=True)
        command = (sys.executable, "-c", code)
        return Tool(command, tmp_path / "work", tmp_path / "logs" / "tool.log", timeout_s, **options)

    return tool


def log_of(tool: Tool) -> list[str]:
    return tool.log.read_text().splitlines()[1:]


class Family:
    """The processes that a tool reports."""

    def __init__(self) -> None:
        self.found: dict[int, int | None] = {}

    def listen(self, line: str) -> None:
        self.found[int(line)] = start_time(int(line))

    @property
    def is_complete(self) -> bool:
        return len(self.found) == 3

    @property
    def is_gone(self) -> bool:
        return self.is_complete and wait_until(
            lambda: not any(is_alive(pid, started) for pid, started in self.found.items()), 5
        )


def test_output_lines_go_to_the_log_and_the_listener(tool: Callable[..., Tool]) -> None:
    said: list[str] = []
    built = tool("import sys; print('one'); sys.stdout.flush(); print('two', file=sys.stderr); print('a\\rb', end='')")
    run_tool(built, said.append)
    assert said == log_of(built) == ["one", "two", "a", "b"]
    head = built.log.read_text().splitlines()[0]
    assert head.startswith(f"$ cd {built.cwd} && {sys.executable} -c ")


def test_terminal_control_sequences_are_removed_from_the_output(tool: Callable[..., Tool]) -> None:
    said: list[str] = []
    run_tool(tool(r"import sys; sys.stdout.buffer.write(b'\x1b[31mred\x1b[0m\tx\x07\n\xff\n')"), said.append)
    assert said == ["red x", "\ufffd"]


def test_long_line_without_newline_is_delivered_in_pieces(tool: Callable[..., Tool]) -> None:
    said: list[str] = []
    run_tool(tool("print('x' * 100_000, end='')"), said.append)
    assert "".join(said) == "x" * 100_000
    assert max(map(len, said)) < 20_000


def test_tool_environment_excludes_secrets(tool: Callable[..., Tool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/lib")
    code = "import os; print(*sorted(os.environ)); print(os.environ['CUDA_VISIBLE_DEVICES'])"
    built = tool(code, variables={"CUDA_VISIBLE_DEVICES": "1"})
    run_tool(built)
    names, devices = log_of(built)
    assert devices == "1"
    assert {"PATH", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES"} <= set(names.split())
    assert "HF_TOKEN" not in names


def test_tool_failure_reports_the_exit_status_and_the_end_of_the_log(tool: Callable[..., Tool]) -> None:
    built = tool("for number in range(100): print('line', number)\nraise SystemExit(3)")
    with pytest.raises(StepError) as caught:
        run_tool(built)
    assert caught.value.message == f"{sys.executable} failed with exit status 3"
    shown = "\n".join(f"line {number}" for number in range(80, 100))
    assert caught.value.hint == f"the end of {built.log}:\n{shown}"
    assert built.log.read_text().count("\nline ") == 100
    with pytest.raises(StepError, match="failed with SIGKILL; the machine may be out of memory"):
        run_tool(tool("import os; os.kill(os.getpid(), 9)"))
    with pytest.raises(StepError, match=r"\(no output\)"):
        run_tool(tool("raise SystemExit(1)"))


def test_missing_command_fails_with_exit_status_127(tmp_path: Path) -> None:
    with pytest.raises(StepError, match="no-such-builder failed with exit status 127: it cannot be started") as caught:
        run_tool(Tool(("no-such-builder",), tmp_path, tmp_path / "log", PATIENCE_S))
    assert "no-such-builder: No such file or directory" in str(caught.value)


@pytest.mark.slow
def test_timeout_ends_the_tool_and_all_its_processes(tool: Callable[..., Tool]) -> None:
    family = Family()
    built = tool(DEAF_FAMILY, timeout_s=2.0, grace_s=0.2)
    with pytest.raises(StepTimeout, match="did not finish within 2 s") as caught:
        run_tool(built, family.listen)
    assert str(max(family.found)) in str(caught.value.hint)
    assert family.is_gone, "also a child that ignores SIGTERM, and one in another session"


@pytest.mark.slow
@pytest.mark.parametrize("error", [KeyboardInterrupt(), StepError("another version")])
def test_error_in_the_interrupt_callback_ends_all_processes(tool: Callable[..., Tool], error: BaseException) -> None:
    family = Family()

    def interrupt() -> None:
        if family.is_complete:
            raise error

    with pytest.raises(type(error)) as caught:
        run_tool(tool(DEAF_FAMILY, grace_s=0.2), family.listen, interrupt)
    assert caught.value is error
    assert family.is_gone


def test_normal_exit_leaves_no_child_process(tool: Callable[..., Tool]) -> None:
    family = Family()
    run_tool(tool(DEAF_FAMILY.replace("time.sleep(600)\n", "", 1)), family.listen)
    assert family.is_gone


def test_interrupted_tool_can_handle_sigterm(tool: Callable[..., Tool], tmp_path: Path) -> None:
    code = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (open("ended", "w").close(), sys.exit()))
print("ready", flush=True)
time.sleep(600)
"""
    ready = threading.Event()

    def interrupt() -> None:
        if ready.is_set():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_tool(tool(code), lambda line: ready.set(), interrupt)
    assert (tmp_path / "work" / "ended").exists()


@pytest.mark.slow
def test_killed_parent_ends_the_tool_and_runs_the_cleanup(tool: Callable[..., Tool], tmp_path: Path) -> None:
    cleaned = tmp_path / "cleaned"
    script = f"""
from pathlib import Path
from trtspec.backends.common.build_tools import Tool, run_tool
command = ({sys.executable!r}, "-c", {DEAF_FAMILY!r})
tool = Tool(command, Path({str(tmp_path)!r}), Path({str(tmp_path / "log")!r}), 600, grace_s=0.2,
            cleanup=("touch", {str(cleaned)!r}))
run_tool(tool, lambda line: print(line, flush=True))
"""
    us = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    family = Family()
    assert us.stdout
    while not family.is_complete:
        family.listen(us.stdout.readline())
    us.kill()
    assert us.wait(30) == -signal.SIGKILL
    us.stdout.close()
    assert family.is_gone
    assert wait_until(cleaned.exists, 30), "the cleanup command has run too"


def test_full_disk_loses_the_log_but_not_the_error_message(tool: Callable[..., Tool], tmp_path: Path) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("needs /dev/full")
    built = tool("print('no space left'); raise SystemExit(1)")
    built.log.parent.mkdir()
    built.log.symlink_to("/dev/full")
    with pytest.raises(StepError, match="no space left"):
        run_tool(built)


class Messages(StepProgress):
    """Collects the messages."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def set_message(self, text: str) -> None:
        self.texts.append(text)


def test_build_phases_are_parsed_from_log_lines() -> None:
    messages = Messages()
    listen = build_listener(2, "1.2.1", messages)
    lines = (
        "[12/31/2024-21:25:45] [TRT-LLM] [I] Total time of constructing network from module object 3.1 seconds",
        "[12/31/2024-21:25:45] [TRT-LLM] [I] Build TensorRT engine Unnamed Network 0",
        "[12/31/2024-21:26:45] [TRT] [I] Detected 18 inputs",
        "[12/31/2024-21:27:45] [TRT-LLM] [I] Serializing engine to engines/target/rank0.engine...",
        "[12/31/2024-21:27:55] [TRT-LLM] [I] Build TensorRT engine Unnamed Network 0",
    )
    for line in lines:
        listen(line)
    assert messages.texts == [
        "rank 1 of 2: network constructed",
        "rank 1 of 2: TensorRT is building",
        "rank 1 of 2: writing the engine",
        "rank 2 of 2: TensorRT is building",
    ]


@pytest.mark.parametrize("name", ["TensorRT-LLM", "TensorRT LLM"])
def test_version_is_parsed_from_a_log_line(name: str) -> None:
    line = f"[TensorRT-LLM] {name} version: 1.2.1"
    build_listener(1, "1.2.1", StepProgress())(line)
    with pytest.raises(StepError, match=r"TensorRT-LLM 1\.2\.1 is running, but the recipe requires 1\.2\.0"):
        build_listener(1, "1.2.0", StepProgress())(line)


def test_kill_on_parent_exit_does_not_import_trtspec() -> None:
    from trtspec.backends.common import kill_on_parent_exit

    source = Path(kill_on_parent_exit.__file__).read_text()
    assert not re.search(r"^\s*(from|import) trtspec", source, re.MULTILINE)
