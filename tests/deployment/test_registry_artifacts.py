# SPDX-License-Identifier: Apache-2.0
"""Manifests for artifacts in a registry: by digest, pulled by an init container or mounted, and as a canary."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Run
from tests.deployment import accepted
from tests.deployment.manifests import IMAGE, manifest
from tests.deployment.test_kubernetes import container, document, engine_repository, kubectl, rendered
from tests.store.registries.artifacts import contents, make_artifact
from tests.store.registries.double import Registry, running_registry
from tests.store.registries.real import running_docker_registry, skopeo
from trtspec.store.artifact import load_artifact, verify_files

__all__ = ["kubectl"]
OCI = f"oci:{IMAGE}"
SHA256 = re.compile(r"sha256:[0-9a-f]{64}")


@pytest.fixture
def registry(workplace: Path) -> Iterator[Registry]:
    with running_registry() as running:
        yield running


@pytest.fixture
def built(workplace: Path) -> Path:
    return make_artifact(workplace / "built")


def render(trtspec: Run, address: str, out: str, *words: str) -> dict[str, Any]:
    done = trtspec("deploy", address, "--target", "kubernetes", "--image", IMAGE, "--render", out, "--json", *words)
    assert done.code == 0, done.err
    return done.document


def texts(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): path.read_text() for path in root.rglob("*") if path.is_file()}


def pod(files: dict[str, str], kind: str = "Deployment") -> dict[str, Any]:
    return next(iter(accepted.pods(document(files, kind))))


def test_artifact_is_rendered_by_digest_without_its_weights(
    built: Path, registry: Registry, trtspec: Run, workplace: Path
) -> None:
    address = f"oci://{registry.host}/team/tiny"
    pushed = trtspec("push", built, f"{address}:v1", "--json").document
    assert render(trtspec, f"{address}:v1", "out")["source"] == f"{address}@{pushed['digest']}"
    assert registry.sent < 100_000
    files = texts(workplace / "out")
    assert accepted.problems(files) == []
    found = document(files, "Deployment")["metadata"]["annotations"]
    assert found == {"trtspec/artifact": f"{address}@{pushed['digest']}", "trtspec/tag": "v1"}
    assert "annotations" not in document(files, "Deployment")["spec"]["template"]["metadata"]
    pull = pod(files)["initContainers"][0]
    assert pull["command"] == [
        *("trtspec", "pull", f"{address}@{pushed['digest']}", "--out=/pulled/artifact"),
        f"--manifest={pushed['manifest']}",
    ]
    assert f"--manifest={pushed['manifest']}" in pod(files)["containers"][0]["command"]
    assert not any(f"{registry.host}/team/tiny:v1" in text for text in files.values())
    assert (
        contents(workplace / "built")["manifest.json"] == (described(workplace, pushed) / "manifest.json").read_bytes()
    )


def described(workplace: Path, pushed: dict[str, Any]) -> Path:
    return Path(os.environ["TRTSPEC_CACHE"]) / "described" / pushed["manifest"].removeprefix("sha256:")


def test_changed_documents_and_other_artifacts_are_refused(built: Path, registry: Registry, trtspec: Run) -> None:
    address = f"oci://{registry.host}/team/tiny:v1"
    trtspec("push", built, address)
    words = ("--target", "kubernetes", "--image", IMAGE, "--render", "out")
    refused = trtspec("deploy", address, *words, "--manifest", f"sha256:{'0' * 64}")
    assert (refused.code, "this is not the requested artifact" in refused.err) == (102, True)
    model = next(digest for (_, digest), data in registry.blobs.items() if data == b"print()\n")
    registry.blobs["team/tiny", model] = b"hacked!\n"
    refused = trtspec("deploy", address, *words)
    assert (refused.code, "has the digest" in refused.err) == (102, True)
    assert not Path("out").exists()


def test_layout_is_refused_because_pods_cannot_pull_it(built: Path, trtspec: Run) -> None:
    assert trtspec("push", built, "file:models:v1").code == 0
    refused = trtspec("deploy", "file:models:v1", "--target", "kubernetes", "--image", IMAGE, "--render", "out")
    assert (refused.code, "can only pull from a registry" in refused.err) == (1, True)


def test_canary_keeps_its_digest_when_the_tag_moves(
    built: Path, registry: Registry, trtspec: Run, workplace: Path
) -> None:
    """Stable and canary come from one tag at two times; the weight is raised after the tag has moved again."""
    address = f"oci://{registry.host}/team/tiny"
    trtspec("push", built, f"{address}:live")
    stable = render(trtspec, f"{address}:live", "stable")["source"]
    trtspec("push", make_artifact(workplace / "second", draft_seed=1), f"{address}:live")
    canary = ("--name", "tiny-new", "--target-option", "canary-of=tiny", "--target-option", "weight=5")
    new = render(trtspec, f"{address}:live", "new", *canary)["source"]
    trtspec("push", make_artifact(workplace / "third", draft_seed=2), f"{address}:live")
    more = (*canary[:4], "--target-option", "weight=25")
    assert render(trtspec, new, "more", *more)["source"] == new != stable
    for out, source, weights in (("stable", stable, {"tiny": 100}), ("new", new, {"tiny": 95, "tiny-new": 5})):
        files = texts(workplace / out)
        assert accepted.problems(files) == []
        assert pod(files)["initContainers"][0]["command"][2] == source
        assert route(files) == weights
    files, before = texts(workplace / "more"), texts(workplace / "new")
    assert route(files) == {"tiny": 75, "tiny-new": 25}
    assert "trtspec/tag" not in document(files, "Deployment")["metadata"]["annotations"]
    assert document(files, "Deployment")["spec"] == document(before, "Deployment")["spec"]  # no pod restarts


def route(files: dict[str, str]) -> dict[str, int]:
    found = document(files, "HTTPRoute")
    assert found["metadata"]["name"] == "tiny"
    return {each["name"]: each["weight"] for each in found["spec"]["rules"][0]["backendRefs"]}


@pytest.mark.parametrize("kind", ["image", "modelpack"])
def test_node_can_mount_the_artifact_instead(
    kind: str, built: Path, registry: Registry, trtspec: Run, workplace: Path
) -> None:
    address = f"oci://{registry.host}/team/tiny:v1"
    pushed = trtspec("push", built, address, "--json").document
    render(trtspec, address, "out", "--target-option", f"artifact={kind}", "--target-option", "pull-secret=registry")
    files = texts(workplace / "out")
    assert accepted.problems(files) == []
    assert "initContainers" not in pod(files)
    assert f"{registry.host}/team/tiny@{pushed['digest']}" in json.dumps(pod(files)["volumes"][0])
    assert pod(files)["imagePullSecrets"] == [{"name": "registry"}]
    assert document(files, "NetworkPolicy")["spec"]["egress"] == []


def test_credentials_are_a_mounted_secret_of_the_init_container_only() -> None:
    files = rendered(artifact=OCI, pull_secret="registry")
    assert accepted.problems(files) == []
    found = pod(files)
    secret = next(each["secret"] for each in found["volumes"] if each["name"] == "credentials")
    assert secret["secretName"] == "registry"
    assert {"name": "DOCKER_CONFIG", "value": "/credentials"} in found["initContainers"][0]["env"]
    assert "credentials" in {each["name"] for each in found["initContainers"][0]["volumeMounts"]}
    assert "credentials" not in {each["name"] for each in found["containers"][0]["volumeMounts"]}
    assert "Secret" not in {each["kind"] for each in accepted.documents(files)}
    assert "credentials" not in json.dumps(pod(rendered(artifact=OCI)))


def test_server_mounts_the_pulled_artifact_read_only() -> None:
    mount = container(rendered(artifact=OCI))["volumeMounts"][0]
    assert mount == {"name": "artifact", "mountPath": "/artifact", "readOnly": True, "subPath": "artifact"}


def test_disk_requests_cover_the_artifact() -> None:
    files = rendered(manifest(weights=100 << 30), artifact=OCI)
    found = pod(files)
    assert found["volumes"][0]["emptyDir"] == {"sizeLimit": "101Gi"}
    assert found["initContainers"][0]["resources"]["requests"]["ephemeral-storage"] == "101Gi"
    disk = {kind: each["ephemeral-storage"] for kind, each in container(files)["resources"].items()}
    assert disk == {"requests": "105Gi", "limits": "113Gi"}
    deadline = document(files, "Deployment")["spec"]["progressDeadlineSeconds"]
    assert deadline >= container(files)["startupProbe"]["failureThreshold"] * 5 + 100 * 1024 // 50


@pytest.mark.parametrize(
    ("reference", "settings", "rule"),
    [
        ("registry.example", {}, {"ports": [{"protocol": "TCP", "port": 443}]}),
        (
            "registry.example:5000",
            {"registry_cidr": "10.1.0.0/16"},
            {
                "to": [{"ipBlock": {"cidr": "10.1.0.0/16"}}],
                "ports": [{"protocol": "TCP", "port": 443}, {"protocol": "TCP", "port": 5000}],
            },
        ),
    ],
)
def test_egress_is_limited_to_the_registry_and_names(
    reference: str, settings: dict[str, str], rule: dict[str, Any]
) -> None:
    files = rendered(artifact=f"oci:{reference}/tiny@sha256:{'a' * 64}", **settings)
    assert accepted.problems(files) == []
    egress = document(files, "NetworkPolicy")["spec"]["egress"]
    assert egress[0] == rule
    assert [port["port"] for port in egress[1]["ports"]] == [53, 53]
    assert len(egress) == 2


@pytest.mark.parametrize("kind", ["oci", "image", "modelpack"])
def test_kserve_and_dynamo_mount_an_artifact_of_a_registry(kind: str, tmp_path: Path) -> None:
    repository = engine_repository("vllm", tmp_path)
    words = {"artifact": f"{kind}:{IMAGE}", "pull_image": IMAGE.replace("serving", "tools")}
    kserve = rendered(manifest("vllm"), repository, form="kserve", **words)
    assert accepted.problems(kserve) == []
    spec = document(kserve, "LLMInferenceService")["spec"]
    assert spec["storageInitializer"] == {"enabled": False}
    assert spec["model"]["uri"] == f"oci://{IMAGE}"
    mount = spec["template"]["containers"][0]["volumeMounts"][0]
    assert (mount["name"], mount["mountPath"], mount["readOnly"]) == ("artifact", "/mnt/models", True)
    dynamo = rendered(manifest("vllm"), repository, form="dynamo", **words)
    assert accepted.problems(dynamo) == []
    front, worker = (
        next(iter(accepted.pods(each))) for each in document(dynamo, "DynamoGraphDeployment")["spec"]["components"]
    )
    assert "initContainers" not in front
    for each in (spec["template"], worker):
        images = [init["image"] for init in each.get("initContainers", ())]
        assert images == ([words["pull_image"]] if kind == "oci" else [])


@pytest.mark.slow
def test_deploy_applies_the_digest_of_the_tag(
    built: Path, registry: Registry, trtspec: Run, kubectl: Path, workplace: Path
) -> None:
    address = f"oci://{registry.host}/team/tiny"
    pushed = trtspec("push", built, f"{address}:v1", "--json").document
    done = trtspec("deploy", f"{address}:v1", "--target", "kubernetes", "--image", IMAGE, "--detach", "--json")
    assert done.code == 0, done.err
    applied = next(Path(os.environ["TRTSPEC_STATE"]).rglob("workload.yaml")).read_text()
    assert f"{address}@{pushed['digest']}" in applied
    assert trtspec("stop", "tiny").code == 0


@pytest.mark.slow
def test_init_container_leaves_a_verified_artifact(
    built: Path, trtspec: Run, workplace: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The rendered command runs here, against a real registry."""
    with running_docker_registry(tmp_path_factory.mktemp("registry")) as host:
        trtspec("push", built, f"oci://{host}/team/tiny:v1")
        render(trtspec, f"oci://{host}/team/tiny:v1", "out")
        command = pod(texts(workplace / "out"))["initContainers"][0]["command"][1:]
        words = [word.replace("/pulled", str(workplace / "pulled")) for word in command]
        assert trtspec(*words).code == 0
        pulled = workplace / "pulled" / "artifact"
        assert verify_files(pulled, load_artifact(pulled).manifest) == []
        assert not (workplace / "pulled" / ".artifact.partial").exists()
        other = trtspec(*words[:-1], f"--manifest=sha256:{'0' * 64}")
        assert other.code == 102


@pytest.mark.slow
def test_files_that_crio_mounts_are_the_artifact(
    built: Path, trtspec: Run, workplace: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """CRI-O copies an artifact to an OCI layout and mounts each blob at the title of its layer; skopeo copies it here.

    Source: cri-o/cri-o:internal/ociartifact/store.go@v1.36.3 (BlobMountPaths, artifactName).
    """
    layout, mounted = workplace / "layout", workplace / "mounted"
    with running_docker_registry(tmp_path_factory.mktemp("registry")) as host:
        pushed = trtspec("push", built, f"oci://{host}/team/tiny:v1", "--json").document
        source = f"docker://{host}/team/tiny@{pushed['digest']}"
        skopeo("copy", "--src-tls-verify=false", source, f"oci:{layout}:v1")
    blobs = layout / "blobs" / "sha256"
    image = json.loads((blobs / pushed["digest"].removeprefix("sha256:")).read_text())
    for layer in image["layers"]:
        place = mounted / layer["annotations"]["org.opencontainers.image.title"]
        place.parent.mkdir(parents=True, exist_ok=True)
        os.link(blobs / layer["digest"].removeprefix("sha256:"), place)
    found = load_artifact(mounted, pushed["manifest"].removeprefix("sha256:"))
    assert verify_files(mounted, found.manifest) == []
