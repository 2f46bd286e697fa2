# SPDX-License-Identifier: Apache-2.0
"""Messages of `deploy` before it measures the gates of an unverified artifact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Run
from trtspec.bench.gates import GATES
from trtspec.deployment.journal import DeploymentJournal
from trtspec.deployment.options import DeployOptions
from trtspec.store.artifact import Artifact


class Target:
    """A target that serves nothing."""

    render, rollouts = None, False

    def deploy(self, journal: DeploymentJournal, artifact: Artifact, options: DeployOptions) -> Target:
        return self

    def as_dict(self) -> dict[str, Any]:
        return {"format_version": 1, "name": "tiny", "state": "live", "endpoints": {}, "pid": 7}


@pytest.mark.slow
def test_first_deploy_announces_gates_duration_and_how_to_skip_them(
    recipe: Path, trtspec: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trtspec.deployment.base.find_target", lambda name: Target())
    assert trtspec("build", recipe).code == 0
    artifact = recipe.parent / "build" / "tiny"
    first = trtspec("deploy", artifact, "--detach")
    said = f"  gates   no report of {artifact} covers its gates; measuring them now, for about "
    assert said in first.err
    assert " s: lossless" in first.err
    assert (
        f"          to measure them in advance: trtspec verify {artifact}; to skip one: --skip-gate lossless"
        in first.err
    )
    assert first.err.index(said) < first.err.index("run 1 of 1") if "run 1 of 1" in first.err else first.code == 0
    skipped = trtspec("deploy", artifact, "--detach", *(word for gate in GATES for word in ("--skip-gate", gate)))
    assert (skipped.code, "settles its gates" in skipped.err) == (0, False)
