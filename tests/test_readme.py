# SPDX-License-Identifier: Apache-2.0
"""The README's commands run, in their order, as a reader would run them; its links lead somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from trtspec.cli.app import main

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```sh\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
SEEN = (
    "trtspec",
    "model_repository",
    "recipes",
    "benchmarks",
    "Makefile",
    "pyproject.toml",
    "constraints.txt",
    "tests",
)


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """Return a directory that looks like a checkout, and an environment with this interpreter's programs first.

    `make` takes this environment for its own `.venv`; of `make test`, which runs this test, it shows the commands only.
    """
    root = tmp_path_factory.mktemp("readme")
    for name in SEEN:
        (root / name).symlink_to(ROOT / name)
    (root / ".venv").symlink_to(sys.prefix)
    shims = root / "shims"
    shims.mkdir()
    make = shims / "make"
    make.write_text(
        "#!/usr/bin/env bash\n"
        'case "$1" in test|check) set -- -n "$@";; esac\n'
        'exec /usr/bin/env -i HOME="$HOME" PATH="${PATH#*:}" TRTSPEC_CACHE="$TRTSPEC_CACHE" '
        'TRTSPEC_STATE="$TRTSPEC_STATE" OMP_NUM_THREADS="$OMP_NUM_THREADS" make -o .venv/.installed "$@"\n'
    )
    make.chmod(0o755)
    environment = {
        "HOME": str(root),
        "PATH": os.pathsep.join([str(shims), str(Path(sys.executable).parent), os.environ["PATH"]]),
        "TRTSPEC_CACHE": str(root / "cache"),
        "TRTSPEC_STATE": str(root / "state"),
        "OMP_NUM_THREADS": "1",  # two spin where another worker has the core
    }
    return root, environment


@pytest.mark.triton
@pytest.mark.integration
def test_every_command_block_runs(workplace: tuple[Path, dict[str, str]]) -> None:
    root, environment = workplace
    assert len(BLOCKS) >= 3
    try:
        for block in BLOCKS:
            run = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", block],
                cwd=root,
                env=environment,
                capture_output=True,
                text=True,
                timeout=400,
                check=False,
            )
            assert run.returncode == 0, f"{block}\n{run.stdout}\n{run.stderr}"
    finally:
        subprocess.run(
            ["trtspec", "stop", "quickstart"], cwd=root, env=environment, capture_output=True, check=False, timeout=300
        )


def test_the_mistake_it_shows_reads_like_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = (ROOT / "recipes" / "quickstart.yaml").read_text()
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "quickstart.yaml").write_text(recipe.replace("draft_len: 5", "draft_len: 65"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        main(["check", "copy/quickstart.yaml"])
    said = capsys.readouterr().out.split("\n\n")[0].replace("copy/", "recipes/")
    assert said in README


def test_links_lead_somewhere() -> None:
    targets = [target for target in re.findall(r"\]\(([^)#]+)\)", README) if "://" not in target]
    assert targets
    for target in targets:
        assert (ROOT / target).exists(), target


def test_the_catalogue_lists_exactly_the_recipes() -> None:
    catalogue = (ROOT / "recipes" / "README.md").read_text()
    listed = set(re.findall(r"^\| \[([a-z0-9.-]+\.yaml)\]", catalogue, re.MULTILINE))
    assert listed == {path.name for path in (ROOT / "recipes").glob("*.yaml")}
