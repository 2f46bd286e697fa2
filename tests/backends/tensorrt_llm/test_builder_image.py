# SPDX-License-Identifier: Apache-2.0
"""The builder's image by tag: its digest, from a double of docker and podman (tests/doubles/images)."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Run
from tests.doubles.docker_command import read_docker
from tests.doubles.fixtures import DOUBLES, Installation
from trtspec.backends.tensorrt_llm.toolchain import EngineToolchain, probe_toolchain
from trtspec.store.artifact import load_manifest
from trtspec.store.digest import canonical

TAG = "registry.example:5000/nvidia/tritonserver:26.07"
NAME, OTHER_TAG = TAG.rpartition(":")[0], TAG.replace("26.07", "stable")
ONE, TWO, ID = (f"sha256:{digit * 64}" for digit in "123")
AT_ONE, AT_TWO = f"{NAME}@{ONE}", f"{NAME}@{TWO}"


@dataclass(frozen=True)
class Images:
    """The images of the double, and the commands that it got."""

    place: Path
    programs: Path

    def install(self, runtime: str) -> None:
        variables = {"IMAGES_DOUBLE": str(self.place), "RUNTIME_DOUBLE": runtime}
        lines = (
            f"#!{sys.executable}",
            "import os, runpy",
            f"os.environ.update({variables!r})",
            f"runpy.run_path({str(DOUBLES / 'images')!r}, run_name='__main__')",
        )
        program = self.programs / runtime
        program.write_text("\n".join(lines) + "\n")
        program.chmod(0o755)

    def set(self, here: dict[str, Any] | None = None, registry: dict[str, str] | None = None, **fails: Any) -> None:
        state = {"here": here or {}, "registry": registry or {}, "fails": fails}
        (self.place / "images.json").write_text(json.dumps(state))

    def fail(self, command: str, stderr: str) -> None:
        self.set(**{command: {"stderr": stderr, "status": 1}})

    @property
    def calls(self) -> list[list[str]]:
        path = self.place / "calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def images(trtllm: Installation, tmp_path_factory: pytest.TempPathFactory) -> Images:
    """Docker on a machine with two H200, without images."""
    found = Images(tmp_path_factory.mktemp("images"), trtllm.root / "bin")
    found.install("docker")
    found.set()
    return found


def pulled(*digests: str, image_id: str = ID) -> dict[str, Any]:
    return {"Id": image_id, "RepoDigests": list(digests)}


def probed(image: str = TAG, *, online: bool = False) -> EngineToolchain:
    return probe_toolchain(image, "1.2.1", "h200", online=online)


def test_digest_of_a_local_image_replaces_its_tag(images: Images) -> None:
    images.set(here={TAG: pulled(f"mirror.example/tritonserver@{TWO}", AT_ONE)})
    toolchain = probed()
    assert (toolchain.kind, toolchain.image, toolchain.reference) == ("image", AT_ONE, TAG)
    assert toolchain.is_final
    assert toolchain.image_record == f"{TAG} ({AT_ONE})"
    assert toolchain.image_note() == ""
    assert toolchain.command((), reads=(), writes="e", cid_file="x")[-2:] == (AT_ONE, "trtllm-build")
    assert images.calls == [["docker", "image", "inspect", "--format", "{{json .}}", TAG]]


def test_image_tagged_under_a_second_name_has_the_digest_of_the_first(images: Images) -> None:
    images.set(here={"builder:mine": pulled(AT_ONE)})
    assert probed("builder:mine").image == AT_ONE


@pytest.mark.parametrize("digest", [f"tritonserver@{ONE}", f"docker.io/library/tritonserver@{ONE}"])
def test_docker_hub_names_are_equal_with_and_without_their_prefix(digest: str, images: Images) -> None:
    images.set(here={"tritonserver:1": pulled(f"a.example/x@{TWO}", digest)})
    assert probed("tritonserver:1").image == digest


def test_plan_does_not_ask_the_registry_for_an_unknown_tag(images: Images) -> None:
    images.set(registry={TAG: ONE})
    toolchain = probed()
    assert (toolchain.kind, toolchain.image, toolchain.is_final) == ("image", TAG, False)
    assert toolchain.lack() is None
    assert toolchain.image_note() == (
        f"the digest of {TAG} is not known here, so the engines' keys are not final: a build finds it; "
        f"so does docker pull {TAG}"
    )
    assert len(images.calls) == 1


def test_build_finds_the_digest_in_the_registry_without_pulling(images: Images) -> None:
    images.set(registry={TAG: ONE})
    assert probed(online=True).image == AT_ONE
    assert [call[1:3] for call in images.calls] == [["image", "inspect"], ["buildx", "imagetools"]]


def test_local_image_counts_before_the_registry(images: Images) -> None:
    images.set(here={TAG: pulled(AT_ONE)}, registry={TAG: TWO})
    assert probed(online=True).image == AT_ONE


def test_podman_pulls_a_tag_that_is_not_here(images: Images, monkeypatch: pytest.MonkeyPatch) -> None:
    (images.programs / "docker").unlink()
    images.install("podman")
    monkeypatch.setenv("PATH", str(images.programs))
    images.set(registry={TAG: ONE})
    assert probed().is_final is False
    toolchain = probed(online=True)
    assert (toolchain.runtime, toolchain.image) == ("podman", AT_ONE)
    assert ["podman", "pull", "--quiet", TAG] in images.calls


@pytest.mark.parametrize("image_id", [ID, ID.removeprefix("sha256:")])
def test_image_that_was_never_pushed_is_identified_by_its_id(image_id: str, images: Images) -> None:
    images.set(here={"builder:1": pulled(image_id=image_id)})
    toolchain = probed("builder:1")
    assert (toolchain.image, toolchain.is_final, toolchain.kind) == (ID, True, "image")
    assert toolchain.image_record == f"builder:1 ({ID})"
    assert toolchain.image_note() == (
        f"builder:1 is identified by its image id {ID}: no registry has assigned a digest, so only the docker of this "
        "machine has it"
    )


@pytest.mark.parametrize("reference", [AT_ONE, f"{TAG}@{ONE}", f"{OTHER_TAG}@{ONE}"])
def test_reference_with_a_digest_needs_no_runtime_call(reference: str, images: Images) -> None:
    toolchain = probed(reference, online=True)
    assert (toolchain.image, toolchain.image_record, images.calls) == (AT_ONE, reference, [])


def test_toolchain_identity_depends_on_the_digest_not_on_the_tag(images: Images) -> None:
    images.set(here={TAG: pulled(AT_ONE), OTHER_TAG: pulled(AT_ONE)})
    first = canonical(probed())
    assert canonical(probed(OTHER_TAG)) == canonical(probed(AT_ONE)) == first
    images.set(here={TAG: pulled(AT_TWO)})
    assert canonical(probed()) != first


@pytest.mark.parametrize(
    ("command", "stderr", "missing", "hint"),
    [
        ("image inspect", "Cannot connect to the Docker daemon at unix:///x.sock. Is the docker daemon running?",
         "docker image inspect failed: the docker daemon is not reachable", "start it (systemctl start docker)"),
        ("image inspect", "permission denied while trying to connect to the docker API at unix:///var/run/docker.sock",
         "docker image inspect failed: permission denied for the docker daemon", "add the user to the group docker"),
        ("buildx", f"ERROR: {TAG}: not found",
         "docker buildx imagetools inspect failed: image not found, or access denied by its registry",
         "compare the image's name, tag and digest"),
        ("buildx", "ERROR: failed to authorize: failed to fetch anonymous token: unexpected status from GET request to "
         "https://nvcr.io/proxy_auth: 401 Unauthorized",
         "docker buildx imagetools inspect failed: access to the image denied by the registry", "docker login"),
        ("buildx", "ERROR: failed to do request: Head \"https://registry.example:5000/v2/\": dial tcp: lookup "
         "registry.example on 127.0.0.53:53: no such host",
         "docker buildx imagetools inspect failed: the registry cannot be reached", "pull the image in advance"),
        ("buildx", "docker: 'buildx' is not a docker command.\nSee 'docker --help'",
         "docker buildx imagetools inspect failed: docker has no buildx plugin", "or pull the image in advance"),
    ],
)  # fmt: skip
def test_failed_look_up_prevents_engine_builds(
    command: str, stderr: str, missing: str, hint: str, images: Images
) -> None:
    images.fail(command, stderr)
    toolchain = probed(online=True)
    assert (toolchain.kind, toolchain.missing) == ("absent", missing)
    assert hint in toolchain.hint
    assert stderr.splitlines()[-1] in toolchain.hint


def test_runtime_that_does_not_answer_in_time_is_reported(images: Images, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trtspec.backends.tensorrt_llm.toolchain.INSPECT_S", 0.01)
    assert probed().missing == "docker image inspect did not end within 0 s"


@pytest.mark.parametrize("digest", [None, "latest", "sha256:12"])
def test_unexpected_digest_is_reported(digest: Any, images: Images) -> None:
    images.set(registry={TAG: digest})
    assert probed(online=True).missing == f"docker printed {str(digest)!r} as the digest of {TAG}"


def test_output_that_is_not_json_is_reported(images: Images) -> None:
    images.set(**{"image inspect": {"stderr": "", "status": 0}})
    assert probed().missing == "docker image inspect printed b'', not JSON"


def test_commands_are_those_that_docker_documents(images: Images) -> None:
    images.set(registry={TAG: ONE})
    toolchain = probed(online=True)
    for call in [*images.calls, list(toolchain.command((), reads=(), writes="e", cid_file="x"))]:
        read_docker(call)


@pytest.fixture
def engine_recipe(recipe: Path) -> Path:
    build = f"  build: {{image: '{TAG}'}}\n"
    text = recipe.read_text().replace("engine:\n", f"engine:\n  backend: tensorrt_llm\n  gpu: h200\n{build}")
    recipe.write_text(text)
    return recipe


def statuses(document: dict[str, Any]) -> dict[str, str]:
    return {step["name"]: step["status"] for step in document["steps"] if step["name"].startswith("build-")}


@pytest.mark.integration
def test_moved_tag_rebuilds_the_engines_and_another_tag_does_not(
    images: Images, engine_recipe: Path, trtspec: Run
) -> None:
    images.set(registry={TAG: ONE, OTHER_TAG: ONE})
    plan = trtspec("plan", engine_recipe, "--json").document
    assert plan["keys_are_final"] is False
    assert any(note.startswith(f"the digest of {TAG} is not known here") for note in plan["notes"])
    assert {key: plan["toolchain"][key] for key in ("image", "reference", "missing")} == {
        "image": TAG,
        "reference": TAG,
        "missing": "",
    }

    built = trtspec("build", engine_recipe, "--json")
    assert built.code == 0, built.err
    artifact = engine_recipe.parent / "build" / "tiny"
    manifest = load_manifest(artifact)
    assert manifest.tools["image"] == f"{TAG} ({AT_ONE})"
    assert manifest.recipe.engine.build.image == TAG
    assert f" {AT_ONE} trtllm-build " in (artifact / "reproduce.sh").read_text()

    other = trtspec("build", engine_recipe, "--set", f"engine.build.image={OTHER_TAG}", "--json").document
    assert set(statuses(other).values()) == {"hit"}
    assert load_manifest(artifact).tools["image"] == f"{OTHER_TAG} ({AT_ONE})"

    images.set(here={TAG: pulled(AT_TWO)})
    assert trtspec("plan", engine_recipe, "--json").document["keys_are_final"] is True
    moved = trtspec("build", engine_recipe, "--json").document
    assert set(statuses(moved).values()) == {"built"}


@pytest.mark.integration
def test_missing_tag_ends_a_build_before_its_first_step_and_spares_the_conversion(
    images: Images, engine_recipe: Path, trtspec: Run
) -> None:
    refused = trtspec("build", engine_recipe)
    assert refused.code == 1
    assert "cannot build engines: docker buildx imagetools inspect failed: image not found" in refused.err
    assert trtspec("build", engine_recipe, "--until", "convert").code == 0
