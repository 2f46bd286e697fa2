# SPDX-License-Identifier: Apache-2.0
"""The systemd unit that `deploy --systemd` prints, as parsed by systemd."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.conftest import Run
from trtspec.backends.code_policy import ALLOW
from trtspec.bench.gates import POLICY
from trtspec.deployment import systemd
from trtspec.deployment.systemd import render_unit, unit_warnings

EXPOSURE = 3.0  # of 10, rated by systemd-analyze


@pytest.fixture
def unit(workplace: Path, trtspec: Run) -> str:
    done = trtspec("deploy", "build/50% $HOME", "--systemd", "--name", "one", "--http-port", 8000, "--skip-gate", "x")
    assert done.code == 0
    assert all(line.startswith("warning: the unit cannot read ") for line in done.err.splitlines())
    return done.out


def analyze(*arguments: object) -> subprocess.CompletedProcess[str]:
    if not (tool := shutil.which("systemd-analyze")):
        pytest.skip("systemd-analyze is not installed")
    return subprocess.run(
        [tool, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=60, env={"LC_ALL": "C"}
    )


def test_unit_serves_with_the_given_options(unit: str, workplace: Path, trtspec: Run) -> None:
    [command] = re.findall("^ExecStart=(.*)$", unit, re.MULTILINE)
    assert command.endswith(
        f' -m trtspec deploy "{workplace}/build/50%% $$HOME" --host 127.0.0.1 --target local --name one '
        "--http-port 8000 --timeout 300.0 --skip-gate x"
    )
    assert "IPAddressDeny=any\nIPAddressAllow=localhost\n" in unit
    open_one = trtspec("deploy", "build/tiny", "--systemd", "--host", "0.0.0.0", "--json")
    assert "IPAddress" not in open_one.document["unit"]
    assert "the server has no authentication" in open_one.err


def test_unit_has_the_options_that_set_variables(
    workplace: Path, trtspec: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(POLICY, "pass")
    monkeypatch.setenv(ALLOW, "")
    unit = trtspec("deploy", "build/tiny", "--systemd", "--undecided", "fail", "--allow-code", "0" * 64).out
    assert f" --undecided fail --allow-code {'0' * 64}\n" in unit


def test_path_with_a_newline_adds_no_line_to_the_unit(workplace: Path) -> None:
    plain = render_unit(workplace / "a", "127.0.0.1", ())
    assert len(render_unit(workplace / "a\nUser=root", "127.0.0.1", ()).splitlines()) == len(plain.splitlines())


def test_unit_passes_systemd_verification(unit: str, tmp_path: Path) -> None:
    path = tmp_path / "trtspec-one.service"
    path.write_text(unit)
    verified = analyze("verify", "--recursive-errors=no", path)
    assert (verified.returncode, verified.stderr) == (0, "")


def test_unit_security_exposure_is_below_the_limit(unit: str, tmp_path: Path) -> None:
    path = tmp_path / "trtspec-one.service"
    path.write_text(unit)
    rated = analyze("security", "--offline=true", "--no-pager", path)
    [level] = re.findall(r"Overall exposure level for .*: ([0-9.]+)", rated.stdout)
    assert float(level) <= EXPOSURE, rated.stdout


def test_root_user_is_warned_only_once(workplace: Path, trtspec: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "warning: running as root, as will the server and its models; use a dedicated user"
    for user, warned in ((1000, False), (0, True), (0, False)):
        monkeypatch.setattr("trtspec.cli.deploy.os.geteuid", lambda user=user: user)
        refused = trtspec("deploy", "nowhere")
        assert (refused.code, said in refused.err) == (1, warned)


def test_unit_stop_timeout_covers_the_drain_time(unit: str, workplace: Path, trtspec: Run) -> None:
    assert "\nTimeoutStopSec=60\n" in unit
    long = trtspec("deploy", "build/tiny", "--systemd", "--drain", 300)
    assert "\nTimeoutStopSec=350\n" in long.out


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory outside /tmp, readable by everyone, in place of those of Python and trtspec."""
    monkeypatch.setattr(systemd, "PRIVATE", (tmp_path / "tmp",))
    monkeypatch.setattr(systemd, "sys", SimpleNamespace(executable="/bin/sh", prefix="/usr", base_prefix="/usr"))
    monkeypatch.setattr(systemd, "__file__", "/usr/lib/trtspec/deployment/systemd.py")
    place = tmp_path / "srv" / "artifact"
    place.mkdir(parents=True)
    (place / "manifest.json").touch()
    for each in (*tmp_path.parents, tmp_path, place.parent, place):
        if each.owner() == Path(tmp_path).owner() and each != Path("/"):
            each.chmod(0o755 | (each.stat().st_mode & 0o7000))
    (place / "manifest.json").chmod(0o644)
    return place


def test_unit_with_readable_files_has_no_warning(seen: Path) -> None:
    assert unit_warnings(seen, {}) == []


def test_artifact_below_tmp_gets_a_private_tmp_warning(seen: Path, tmp_path: Path) -> None:
    [warning] = unit_warnings(tmp_path / "tmp" / "build", {})
    assert warning.startswith(f"the unit cannot read the artifact ({tmp_path}/tmp/build): {tmp_path}/tmp is private")
    assert "PrivateTmp=yes" in warning
    assert "move it to a directory such as /opt or /srv" in warning
    link = seen.parent / "link"
    (tmp_path / "tmp" / "build").mkdir(parents=True)
    link.symlink_to(tmp_path / "tmp" / "build")
    assert "PrivateTmp=yes" in unit_warnings(link, {})[0]


def test_directory_private_to_one_user_gets_a_unit_warning(seen: Path) -> None:
    seen.parent.chmod(0o700)
    [warning] = unit_warnings(seen, {})
    assert f"other users may not enter {seen.parent} (DynamicUser=yes)" in warning
    assert f"chmod o+x {seen.parent}" in warning


def test_file_private_to_one_user_gets_a_unit_warning(seen: Path) -> None:
    (seen / "weights").touch()
    (seen / "weights").chmod(0o600)
    [warning] = unit_warnings(seen, {})
    assert f"other users may not read {seen}/weights (DynamicUser=yes); chmod -R o+rX {seen}" in warning


def test_openai_keys_of_the_shell_get_a_unit_warning(seen: Path, trtspec: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    [warning] = unit_warnings(seen, {"TRTSPEC_OPENAI_KEYS": "secret"})
    assert warning.startswith("the unit does not get TRTSPEC_OPENAI_KEYS of this shell")
    assert "secret" not in warning
    monkeypatch.setenv("TRTSPEC_OPENAI_KEYS", "secret")
    done = trtspec("deploy", seen, "--systemd", "--json")
    assert done.document["warnings"] == [warning]


def test_unit_with_a_public_gateway_leaves_triton_on_loopback(workplace: Path, trtspec: Run) -> None:
    unit = trtspec("deploy", "build/tiny", "--systemd", "--openai-host", "0.0.0.0").out
    assert "IPAddressDeny" not in unit
    assert "--host 127.0.0.1 --openai-host 0.0.0.0 " in unit
