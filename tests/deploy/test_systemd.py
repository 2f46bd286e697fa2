# SPDX-License-Identifier: Apache-2.0
"""The systemd unit that `deploy --systemd` prints, as systemd itself reads it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import Run
from trtspec.deploy.systemd import render_unit

EXPOSURE = 3.0  # of 10, as systemd-analyze rates it


@pytest.fixture
def unit(workplace: Path, trtspec: Run) -> str:
    done = trtspec("deploy", "build/50% $HOME", "--systemd", "--name", "one", "--http-port", 8000, "--skip-gate", "x")
    assert (done.code, done.err) == (0, "")
    return done.out


def analyze(*arguments: object) -> subprocess.CompletedProcess[str]:
    if not (tool := shutil.which("systemd-analyze")):
        pytest.skip("systemd-analyze is not installed")
    return subprocess.run(
        [tool, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=60, env={"LC_ALL": "C"}
    )


def test_it_serves_with_the_options_that_were_given(unit: str, workplace: Path, trtspec: Run) -> None:
    [command] = re.findall("^ExecStart=(.*)$", unit, re.MULTILINE)
    assert command.endswith(
        f' -m trtspec deploy "{workplace}/build/50%% $$HOME" --host 127.0.0.1 --target local --name one '
        "--http-port 8000 --timeout 300.0 --skip-gate x"
    )
    assert "IPAddressDeny=any\nIPAddressAllow=localhost\n" in unit
    open_one = trtspec("deploy", "build/tiny", "--systemd", "--host", "0.0.0.0", "--json")
    assert "IPAddress" not in open_one.document["unit"]
    assert "the server has no authentication" in open_one.err


def test_no_path_adds_a_line(workplace: Path) -> None:
    plain = render_unit(workplace / "a", "127.0.0.1", ())
    assert len(render_unit(workplace / "a\nUser=root", "127.0.0.1", ()).splitlines()) == len(plain.splitlines())


def test_systemd_takes_it(unit: str, tmp_path: Path) -> None:
    path = tmp_path / "trtspec-one.service"
    path.write_text(unit)
    verified = analyze("verify", "--recursive-errors=no", path)
    assert (verified.returncode, verified.stderr) == (0, "")


def test_little_of_the_machine_is_exposed(unit: str, tmp_path: Path) -> None:
    path = tmp_path / "trtspec-one.service"
    path.write_text(unit)
    rated = analyze("security", "--offline=true", "--no-pager", path)
    [level] = re.findall(r"Overall exposure level for .*: ([0-9.]+)", rated.stdout)
    assert float(level) <= EXPOSURE, rated.stdout


def test_root_is_warned(workplace: Path, trtspec: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "warning: it runs as root, and so will the server and the models in it; a user of its own is safer"
    for user, warned in ((0, True), (1000, False)):
        monkeypatch.setattr("trtspec.cli.deploy.os.geteuid", lambda user=user: user)
        refused = trtspec("deploy", "nowhere")
        assert (refused.code, said in refused.err) == (1, warned)


def test_systemd_waits_as_long_as_open_requests_may_take(unit: str, workplace: Path, trtspec: Run) -> None:
    assert "\nTimeoutStopSec=60\n" in unit
    long = trtspec("deploy", "build/tiny", "--systemd", "--drain", 300)
    assert "\nTimeoutStopSec=350\n" in long.out
