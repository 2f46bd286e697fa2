# SPDX-License-Identifier: Apache-2.0
"""The example of a pipeline runs from a clone: convert, build, verify, hand over, deploy and ask."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trtspec.core.errors import DeployError
from trtspec.serving.triton.server import find_server

ROOT = Path(__file__).parents[2]


@pytest.mark.triton
@pytest.mark.slow
def test_pipeline_hands_a_verified_artifact_to_another_directory(tmp_path: Path) -> None:
    try:
        find_server()
    except DeployError as error:
        pytest.skip(str(error))
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [ROOT / "examples/pipeline/run.sh", "recipes/quickstart.yaml", tmp_path],
        cwd=ROOT,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "remaining: copy-tokenizer, copy-prompts, emit-repository" in said
    assert "another artifact" not in said
    assert '"text_output":' in done.stdout
    assert "pipeline is stopped" in said
    assert (tmp_path / "build" / "junit.xml").is_file()
