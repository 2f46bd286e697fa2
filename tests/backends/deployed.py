# SPDX-License-Identifier: Apache-2.0
"""An artifact deployed with the command-line interface for the duration of a block."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Run
from tests.serving.triton.artifact import rewrite_manifest
from trtspec.core.errors import DeployError
from trtspec.serving.triton.client import Client
from trtspec.serving.triton.server import find_server

LOADING_S = 120


def need_server() -> None:
    """Skip the test without tritonserver."""
    try:
        find_server()
    except DeployError as error:
        pytest.skip(str(error))


@contextmanager
def deployed(trtspec: Run, artifact: Path, *options: str) -> Iterator[tuple[dict[str, Any], Client]]:
    """Yield the document of `deploy` and a client; skip the test without tritonserver."""
    need_server()
    try:
        started = trtspec("deploy", artifact, "--detach", "--json", "--timeout", LOADING_S, *options)
        assert started.code == 0, started.err
        yield started.document, Client.at(started.document["endpoints"]["http"], timeout_s=30)
    finally:
        trtspec("stop", artifact.name)


def lend_packages(monkeypatch: pytest.MonkeyPatch, packages: Path, version: Path) -> None:
    """Make the packages below `packages` importable in this process and in the model with the directory `version`.

    Triton's stub ignores PYTHONPATH, but searches the model's directory before any other path that a test can set.
    """
    monkeypatch.syspath_prepend(packages)
    shutil.copytree(packages, version, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    rewrite_manifest(version.parents[2])


def listed(trtspec: Run) -> tuple[str, ...]:
    """Return name, state, backend and method of the only deployment in `ps`, or an empty tuple."""
    deployments = trtspec("ps", "--json").document["deployments"]
    assert len(deployments) <= 1
    return tuple(each[key] for each in deployments for key in ("name", "state", "backend", "method"))


def measured(trtspec: Run, artifact: Path, prompt: str) -> dict[str, Any]:
    """Return the result of `bench` for a live deployment with itself as the baseline."""
    assert trtspec("status", artifact.name, "--json").document["state"] == "live"
    prompts = artifact.parent / "one.jsonl"
    prompts.write_text(json.dumps({"prompt": prompt}))
    beside = ("--baseline", artifact.name, "--runs", 1, "--prompts", prompts)
    done = trtspec("bench", artifact.name, *beside, "--json")
    assert done.code == 0, done.err
    return done.document


def refused(trtspec: Run, artifact: Path) -> dict[str, Any]:
    """Return the error of a `deploy` that rejects the machine before it starts a process."""
    need_server()
    outcome = trtspec("deploy", artifact, "--detach", "--json")
    assert (outcome.code, outcome.document["ok"]) == (1, False)
    assert listed(trtspec) == ()
    return dict(outcome.document["error"])
