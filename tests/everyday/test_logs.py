# SPDX-License-Identifier: Apache-2.0
"""`logs`: the end of a server log of any size, and following a running server."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Run
from trtspec.core.processes import start_time
from trtspec.deployment import log
from trtspec.deployment.journal import DeploymentJournal, DeploymentRecord

pytestmark = pytest.mark.slow  # starts interpreters

WAIT_S = 30


@pytest.fixture
def server() -> Iterator[subprocess.Popen[bytes]]:
    """A process that runs until it is terminated."""
    with subprocess.Popen(["sleep", "300"]) as process:
        yield process
        process.kill()


@pytest.fixture
def path(server: subprocess.Popen[bytes], workplace: Path) -> Path:
    """Path of the log of a deployment `tiny` with that server process; the file does not exist yet."""
    journal = DeploymentJournal("tiny")
    journal.root.mkdir(parents=True)
    started = start_time(server.pid)
    journal.write(DeploymentRecord("tiny", "live", "/build/tiny", server.pid, started, 1, 2, 3, "x", True))
    return journal.log


@pytest.mark.parametrize(
    ("content", "lines", "shown"),
    [
        ("a\nb\nc\n", 2, "b\nc\n"),
        ("a\nb\nc", 2, "b\nc"),
        ("a\n\n\n", 2, "\n\n"),
        ("a\nb\n", 2, "a\nb\n"),
        ("a\nb\n", 9, "a\nb\n"),
        ("a\nb", 0, ""),
        ("", 5, ""),
        ("a", 1, "a"),
        ("\n", 1, "\n"),
    ],
)
@pytest.mark.parametrize("piece", [1, 2, 3, 64])
def test_last_lines_are_read_for_any_piece_size(
    content: str, lines: int, shown: str, piece: int, path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(log, "PIECE_BYTES", piece)
    path.write_text(content)
    assert b"".join(log.read_log(path, lines)).decode() == shown


def test_logs_shows_one_hundred_lines_by_default(path: Path, trtspec: Run) -> None:
    path.write_text("".join(f"line {number}\n" for number in range(150)))
    shown = trtspec("logs", "tiny")
    assert (shown.code, shown.err) == (0, "")
    assert shown.out.splitlines() == [f"line {number}" for number in range(50, 150)]
    assert trtspec("logs", "tiny", "-n", 1).out == "line 149\n"
    assert trtspec("logs", "tiny", "--lines", 2, "--json").document == {
        "format_version": 1,
        "name": "tiny",
        "log_file": str(path),
        "lines": ["line 148", "line 149"],
    }


def test_huge_log_is_read_with_little_memory(path: Path) -> None:
    with path.open("wb") as file:
        file.write(b"first\n")
        file.seek(256 << 20)  # a line of zeros in a sparse file
        file.write(b"\nlast\n")
    tracemalloc.start()
    assert b"".join(log.read_log(path, 1)) == b"last\n"
    assert sum(map(len, log.read_log(path, 2))) == 256 << 20
    assert log.last_lines(path, 2, max_bytes=1000)[-1] == "last"
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 << 20


def test_pipe_receives_unmodified_bytes(path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    from trtspec.cli.app import main

    content = b"\x1b[31mred\x1b[0m\t\xff\x00 \xc3\xa9 \xe2\x82\n"
    path.write_bytes(content)
    with pytest.raises(SystemExit):
        main(["logs", "tiny"])
    assert capfdbinary.readouterr().out == content


def test_terminal_receives_escaped_control_characters(path: Path) -> None:
    path.write_bytes(b"\x1b]0;title\x07red \xc3\xa9 \xff\n")
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "trtspec", "logs", "tiny"]
    subprocess.run(command, stdin=subprocess.DEVNULL, stdout=theirs, timeout=WAIT_S, check=True)
    os.close(theirs)
    assert os.read(ours, 4096).decode() == "\\x1b]0;title\\x07red é \ufffd\r\n"
    os.close(ours)


def followed(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "trtspec", "logs", "tiny", "-f", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_follow_ends_when_the_server_ends(path: Path, server: subprocess.Popen[bytes]) -> None:
    path.write_text("old\nlast\n")
    with followed("--lines", "1") as reader:
        assert reader.stdout.readline() == "last\n"
        with path.open("a") as file:
            file.write("new\n")
        assert reader.stdout.readline() == "new\n"
        with path.open("a") as file:
            file.write("farewell")
        server.kill()
        server.wait(WAIT_S)
        assert reader.communicate(timeout=WAIT_S) == ("farewell", "tiny has ended\n")
        assert reader.returncode == 0


def test_follow_ends_at_an_interrupt(path: Path) -> None:
    path.write_text("last\n")
    with followed() as reader:
        assert reader.stdout.readline() == "last\n"
        reader.send_signal(signal.SIGINT)
        assert reader.communicate(timeout=WAIT_S) == ("", "interrupted\n")
        assert reader.returncode == 130


def test_closed_pipe_ends_logs_silently(path: Path) -> None:
    path.write_text("x" * (1 << 20))
    command = [sys.executable, "-m", "trtspec", "logs", "tiny"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as reader:
        reader.stdout.close()
        assert reader.stderr.read() == b""
        assert reader.wait(WAIT_S) == 1


def test_missing_log_invalid_options_and_unknown_name_are_errors(path: Path, trtspec: Run) -> None:
    assert "the deployment's log is not on this machine" in trtspec("logs", "tiny").err
    refused = trtspec("logs", "tiny", "-f", "--json")
    assert refused.code == 1
    assert refused.document["error"]["hint"] == "omit one of them"
    assert "no deployment 'tony'; known: tiny\nhint: did you mean 'tiny'?" in trtspec("logs", "tony").err
    assert trtspec("logs", "tiny", "--lines", -1).code == 1
