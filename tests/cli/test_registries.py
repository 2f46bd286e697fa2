# SPDX-License-Identifier: Apache-2.0
"""push, pull, list and deploy on the command line."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.conftest import Run
from tests.store.registries.artifacts import contents, make_artifact
from trtspec.core.paths import cache_dir
from trtspec.store.registries.pull import local_artifact
from trtspec.store.registries.pulled import pulled_dir


@pytest.fixture
def built(workplace: Path) -> Path:
    return make_artifact(workplace / "built")


def test_push_list_and_pull(built: Path, trtspec: Run, workplace: Path) -> None:
    pushed = trtspec("push", built, "file:models:v1", "--json")
    assert pushed.code == 0
    document, manifest_bytes = pushed.document, (built / "manifest.json").stat().st_size
    assert document["sent_bytes"] == document["total_bytes"] == sum(map(len, contents(built).values())) - manifest_bytes
    again = trtspec("push", built, "file:models:v1")
    assert again.out.splitlines()[-1] == "pushed 8 files to file:models:v1: 0 B of 7.0 MiB sent"
    listed = trtspec("list", "file:models")
    assert listed.out.splitlines()[1].split() == ["v1", "tiny", "7.0", "MiB", document["manifest"][:19], "-"]
    assert trtspec("list", "file:models", "--json").document["artifacts"][0]["digest"] == document["digest"]
    pulled = trtspec("pull", "file:models:v1")
    assert pulled.out.splitlines()[-1] == f"{workplace}/build/tiny was pulled: 7.0 MiB of 7.0 MiB fetched"
    assert contents(workplace / "build" / "tiny") == contents(built)
    unchanged = trtspec("pull", "file:models:v1", "--manifest", document["manifest"], "--json").document
    assert (unchanged["status"], unchanged["fetched_bytes"], unchanged["digest"]) == (
        "unchanged",
        0,
        document["digest"],
    )


def test_errors_name_the_address_and_the_fix(built: Path, trtspec: Run) -> None:
    wrong = trtspec("push", built, "models:v1")
    assert (wrong.code, "unknown kind of location 'models'" in wrong.err) == (1, True)
    wrong = trtspec("push", built, "oci:models:v1")
    assert "is not oci://HOST/NAME:TAG" in wrong.err
    wrong = trtspec("pull", "file:none:v1")
    assert "the layout does not exist" in wrong.err
    wrong = trtspec("push", "oci://a.example/b:v1", "file:models:v1")
    assert "push takes a directory" in wrong.err
    assert "pull the artifact first" in wrong.err
    for address in ("oci://robot:hunter2@a.example/b:v1", "//robot:hunter2@a.example/b:v1", "s3://robot:hunter2@a/b"):
        for command in (("pull",), ("list",), ("push", built)):
            wrong = trtspec(*command, address)
            assert (wrong.code, "hunter2" in wrong.err) == (1, False)
            assert "may not contain a user or a password" in wrong.err
    trtspec("push", built, "file:models:v1")
    wrong = trtspec("pull", "file:models:v1", "--manifest", f"sha256:{'0' * 64}")
    assert (wrong.code, "this is not the requested artifact" in wrong.err) == (102, True)
    wrong = trtspec("pull", "file:models:v2")
    assert "hint: trtspec list file:models" in wrong.err


def test_damaged_artifact_is_not_pushed(built: Path, trtspec: Run) -> None:
    (built / "tokenizer" / "tokenizer.json").write_text("[]")
    refused = trtspec("push", built, "file:models:v1")
    assert (refused.code, "differs from its recorded digest; nothing was published" in refused.err) == (102, True)


def test_deploy_pulls_into_the_cache_first(artifact: Path, trtspec: Run, workplace: Path) -> None:
    pushed = trtspec("push", artifact, "file:models:v1", "--json").document
    rendered = trtspec(
        *("deploy", "file:models:v1", "--target", "docker", "--render", workplace / "files", "--json"),
        *("--image", f"example.com/triton@sha256:{'0' * 64}"),
    )
    assert rendered.code == 0, rendered.err
    place = cache_dir() / "pulled" / pushed["manifest"].removeprefix("sha256:")
    assert contents(place) == {
        path: data for path, data in contents(artifact).items() if not path.startswith("reports")
    }
    assert pushed["manifest"].removeprefix("sha256:") in (workplace / "files" / "compose.yaml").read_text()
    refused = trtspec("deploy", "file:models:v1", "--manifest", f"sha256:{'0' * 64}")
    assert refused.code == 102


def test_cache_prunes_pulled_artifacts_that_no_deployment_uses(
    built: Path, trtspec: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    trtspec("push", built, "file:models:v1")
    served, unused = (local_artifact("file:models:v1")[0].rename(pulled_dir() / (letter * 64)) for letter in "ab")
    partial = pulled_dir() / f".{'c' * 64}.partial"
    partial.mkdir()
    for path in (served, unused, partial):
        os.utime(path, (0, 0))
    record = SimpleNamespace(state="live", artifact=str(served), manifest="")
    monkeypatch.setattr("trtspec.deployment.base.deployment_names", lambda: ["tiny"])
    monkeypatch.setattr("trtspec.deployment.base.DeploymentJournal.read", lambda self: record)
    listed = trtspec("cache", "--json").document["pulled"]
    assert {each["key"][0]: each["held"] for each in listed} == {"a": True, "b": False, "c": False}
    dry = trtspec("cache", "--prune", "--older-than", "1d", "--dry-run", "--json").document
    assert len(dry["removed_pulled"]) == 2
    assert unused.is_dir()
    gone = trtspec("cache", "--prune", "--older-than", "1d", "--json").document
    assert [each[0] for each in gone["removed_pulled"]] == ["c", "b"]
    assert gone["freed_bytes"] > 6 << 20
    assert served.is_dir()
    assert not unused.exists()
    assert not partial.exists()
    record.state = "stopped"
    recent, _ = local_artifact("file:models:v1")
    trtspec("cache", "--prune", "--max-size", "0GB")
    assert not served.exists()
    assert recent.is_dir()
