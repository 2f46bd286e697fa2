# SPDX-License-Identifier: Apache-2.0
"""Errors of the operating system (permissions, disk space, existing files) are explained by every command."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import asdict
from pathlib import Path

import pytest

from tests._support.confined import as_anybody
from tests.conftest import Run
from trtspec.cli.app import REFUSED_HINT
from trtspec.core.errors import TrtspecError, describe_os_error
from trtspec.deployment.journal import DeploymentRecord
from trtspec.store.artifact import check_artifact_path


@pytest.mark.slow
@pytest.mark.parametrize("name", ["target", "target/config.json", "target/tokenizer.json", "target/model.safetensors"])
def test_unreadable_source_is_reported_at_its_recipe_line(name: str, recipe: Path) -> None:
    path = recipe.parent / name
    mode = path.stat().st_mode
    path.chmod(0)
    try:
        for command in ("check", "plan", "build"):
            ended = as_anybody(command, recipe)
            assert ended.returncode == 1
            assert "ermission denied" in ended.stdout + ended.stderr
            assert "recipe.yaml:4:10  target.model\n" in ended.stdout + ended.stderr
            assert "Traceback" not in ended.stderr
    finally:
        path.chmod(mode)


@pytest.mark.slow
def test_directory_with_list_permission_only_is_an_error(recipe: Path) -> None:
    (recipe.parent / "target").chmod(0o444)
    ended = as_anybody("inspect", recipe.parent / "target")
    (recipe.parent / "target").chmod(0o755)
    assert (ended.returncode, ended.stderr) == (
        1,
        f"error: permission denied for {recipe.parent / 'target' / 'manifest.json'}\nhint: {REFUSED_HINT}\n",
    )


def live(workplace: Path) -> None:
    """Write the record of a deployment whose process has ended."""
    root = workplace / "state" / "deployments" / "tiny"
    root.mkdir(parents=True)
    record = DeploymentRecord("tiny", "live", "build/tiny", 1, None, 1, 2, 3, "trtspec_test_", True)
    (root / "state.json").write_text(json.dumps(asdict(record)))


@pytest.mark.slow
def test_file_in_place_of_the_state_directory_is_an_error(
    artifact: Path, trtspec: Run, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workplace / "file").touch()
    monkeypatch.setenv("TRTSPEC_STATE", str(workplace / "file"))
    for arguments in (("deploy", artifact), ("status", "tiny"), ("stop", "tiny")):
        ended = trtspec(*arguments)
        assert ended.code == 1
        assert str(workplace / "file") in ended.err
        assert "Traceback" not in ended.err


def test_full_disk_in_the_state_directory_is_an_error(
    trtspec: Run, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live(workplace)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("trtspec.deployment.journal.replace_file", full)
    ended = trtspec("stop", "tiny")
    assert (ended.code, ended.err.splitlines()) == (
        1,
        [
            f"error: no space left on {workplace / 'state'}",
            "hint: free space or grant access there, or set TRTSPEC_STATE to another directory",
        ],
    )


def test_os_error_in_a_command_is_reported_with_a_hint(
    trtspec: Run, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused() -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), "/some/file")

    monkeypatch.setattr("trtspec.planning.doctor.probe_machine", refused)
    ended = trtspec("doctor", "--json")
    assert ended.code == ended.document["error"]["exit_code"] == 1
    assert ended.err == f"error: read-only file system at /some/file\nhint: {REFUSED_HINT}\n"


def test_os_error_without_a_machine_cause_is_not_described() -> None:
    assert describe_os_error(OSError(errno.EBADF, "")) is None
    assert describe_os_error(OSError("no number")) is None


def test_root_directory_is_rejected_as_artifact_path(recipe: Path, trtspec: Run) -> None:
    ended = trtspec("build", recipe, "--out", "/")
    assert ended.code == 1
    assert "an artifact needs its own directory" in ended.err
    assert "Traceback" not in ended.err


def test_artifact_path_below_a_file_is_rejected(workplace: Path) -> None:
    (workplace / "file").touch()
    with pytest.raises(TrtspecError, match="is a file, not a directory"):
        check_artifact_path(workplace / "file" / "deep" / "artifact")
