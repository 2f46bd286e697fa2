# SPDX-License-Identifier: Apache-2.0
"""Permissions of a deployment's files: the token, and the logs of this and earlier servers."""

from __future__ import annotations

from pathlib import Path

import pytest

from trtspec.core.errors import DeployError
from trtspec.core.files import private_directory, private_file
from trtspec.deployment.log import FORMER, rotate, tail
from trtspec.deployment.revision import new_token, read_token


def test_token_is_regenerated_stored_privately_and_read_back(tmp_path: Path) -> None:
    first = new_token(tmp_path)
    assert read_token(tmp_path) == first
    assert new_token(tmp_path) != first
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600
    (tmp_path / "token").unlink()
    with pytest.raises(DeployError, match="the deployment's token cannot be read") as caught:
        read_token(tmp_path)
    assert caught.value.hint == "deploy it again"


def test_private_file_replaces_a_symlink_without_writing_through_it(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("kept")
    (tmp_path / "log").symlink_to(tmp_path / "other")
    with private_file(tmp_path / "log") as file:
        file.write(b"new")
    assert (tmp_path / "other").read_text() == "kept"
    assert (tmp_path / "log").read_text() == "new"


def test_private_directory_sets_mode_0700_on_existing_and_new_paths(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir(mode=0o755)
    for path in (tmp_path / "a", tmp_path / "b" / "c"):
        assert private_directory(path).stat().st_mode & 0o777 == 0o700


def test_log_rotation_retains_a_fixed_number_of_logs(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    rotate(log)
    for number in range(FORMER + 3):
        log.write_text(str(number))
        rotate(log)
    kept = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert kept == {f"server.log.{place}": str(FORMER + 3 - place) for place in range(1, FORMER + 1)}


def test_tail_returns_the_last_lines_of_a_file(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"".join(b"line %d\n" % number for number in range(100_000)) + b"\xff last")
    assert tail(log, lines=2) == "line 99999\n\ufffd last"
    assert tail(tmp_path / "none") == ""
