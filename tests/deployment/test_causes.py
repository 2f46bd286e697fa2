# SPDX-License-Identifier: Apache-2.0
"""Output of failing docker and kubectl commands, and the cause that `deploy` reports."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Run
from tests.deployment.manifests import IMAGE, manifest
from tests.doubles.fixtures import Installation
from trtspec.core.container_tools import DOCKER_CAUSES, tool_failure
from trtspec.deployment.journal import DeploymentJournal

DIGEST = "sha256:" + "0" * 64
DOCKER = {
    "no compose plugin": ("unknown flag: --file\n\nUsage:  docker [OPTIONS] COMMAND", "docker has no compose plugin"),
    "old docker": ("docker: 'compose' is not a docker command.\nSee 'docker --help'", "docker has no compose plugin"),
    "new docker": ("docker: unknown command: docker compose\n", "docker has no compose plugin"),
    "no daemon": (
        "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?",
        "the docker daemon is not reachable",
    ),
    "no access": (
        "permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock: "
        'Get "http://%2Fvar%2Frun%2Fdocker.sock/v1.47/info": dial unix /var/run/docker.sock: connect: permission denied',  # noqa: E501
        "permission denied for the docker daemon",
    ),
    "no such image": (
        f"Error response from daemon: manifest for ghcr.io/a/b@{DIGEST} not found: manifest unknown: manifest unknown",
        "image not found, or access denied by its registry",
    ),
    "private image": (
        "Error response from daemon: pull access denied for a/b, repository does not exist or may require "
        "'docker login': denied: requested access to the resource is denied",
        "image not found, or access denied by its registry",
    ),
    "no login": (
        "Error response from daemon: unauthorized: authentication required",
        "access to the image denied by the registry",
    ),
    "no registry": (
        'Error response from daemon: Get "https://nowhere/v2/": dial tcp: lookup nowhere on 127.0.0.53:53: no such host',  # noqa: E501
        "the registry cannot be reached",
    ),
    "no GPU": (
        'Error response from daemon: could not select device driver "nvidia" with capabilities: [[gpu]]',
        "docker cannot provide a GPU to the container",
    ),
    "full disk": ("write /var/lib/docker/tmp/x: no space left on device", "the disk of the docker daemon is full"),
}
LATER = {
    "port": (
        "Error response from daemon: driver failed programming external connectivity on endpoint tiny-server-1 (1): "
        "Bind for 127.0.0.1:8000 failed: port is already allocated",
        "127.0.0.1:8000 is in use",
    ),
    "port of new docker": (
        "Error response from daemon: failed to set up container networking: driver failed programming external "
        "connectivity: failed to bind host port 127.0.0.1:8000/tcp: address already in use",
        "127.0.0.1:8000 is in use",
    ),
    "unhealthy": ("container tiny-server-1 is unhealthy", "the container started but did not answer a request"),
    "ended": ("container tiny-server-1 exited (1)", "the container started but did not answer a request"),
    "late": ("application not healthy after 5m0s", "the container was not healthy in time"),
}
KUBECTL = {
    "no context": ("config", "error: current-context is not set", "kubectl's current context is not set"),
    "unreachable": (
        "apply",
        "The connection to the server 127.0.0.1:6443 was refused - did you specify the right host or port?",
        "the cluster's API server cannot be reached",
    ),
    "no such host": (
        "apply",
        "Unable to connect to the server: dial tcp: lookup cluster.example on 10.0.0.2:53: no such host",
        "the cluster's API server cannot be reached",
    ),
    "not trusted": (
        "apply",
        "Unable to connect to the server: tls: failed to verify certificate: x509: certificate signed by unknown authority",  # noqa: E501
        "kubectl does not trust the certificate",
    ),
    "credentials": (
        "apply",
        "error: You must be logged in to the server (Unauthorized)",
        "the cluster does not accept the credentials",
    ),
}
APPLIED = {
    "forbidden": (
        'Error from server (Forbidden): error when creating "x": deployments.apps is forbidden: User "ada" cannot create '  # noqa: E501
        'resource "deployments" in API group "apps" in the namespace "default"',
        "this user lacks permission for the operation",
    ),
    "missing kind": (
        'error: resource mapping not found for name: "x" namespace: "" from "x.yaml": no matches for kind '
        '"LeaderWorkerSet" in version "leaderworkerset.x-k8s.io/v1"\nensure CRDs are installed first',
        "the cluster does not support resources of kind LeaderWorkerSet",
    ),
    "namespace": (
        'Error from server (NotFound): error when creating "x": namespaces "serving" not found',
        "the namespace serving does not exist",
    ),
}


@pytest.fixture
def artifact(workplace: Path) -> Path:
    folder = workplace / "build" / "tiny"
    (folder / "model_repository").mkdir(parents=True)
    (folder / "manifest.json").write_bytes(manifest().render())
    return folder


@pytest.fixture
def tool(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch) -> Path:
    """The directory of a double of the tested program, which is on PATH."""
    name = "kubectl" if "kubectl" in request.node.name else "docker"
    root = tmp_path_factory.mktemp(name)
    Installation(root).add_program(name, **{f"{name.upper()}_DOUBLE": str(root)})
    monkeypatch.setenv("PATH", str(root / "bin"), prepend=":")
    return root


def breaks(tool: Path, verb: str, said: str, status: int = 1) -> None:
    (tool / "breaks").write_text(json.dumps({"verb": verb, "said": said, "status": status}))


def deploy_docker(trtspec: Run, artifact: Path):
    return trtspec("deploy", artifact, "--target", "docker", "--image", IMAGE, "--detach")


def deploy_kubectl(trtspec: Run, artifact: Path):
    words = ["--target", "kubernetes", "--image", IMAGE, "--target-option", "artifact=pvc:models/tiny", "--detach"]
    return trtspec("deploy", artifact, *words)


@pytest.mark.parametrize("case", DOCKER)
def test_docker_failure_names_its_cause_and_leaves_no_deployment(
    case: str, tool: Path, artifact: Path, trtspec: Run
) -> None:
    said, message = DOCKER[case]
    breaks(tool, "compose", said, 125)
    done = deploy_docker(trtspec, artifact)
    assert done.code == 1
    assert f"error: docker compose up failed: {message}" in done.err
    assert said.splitlines()[0][:80] in done.err.replace("\n", " ")
    assert "docker compose down" not in done.err
    assert trtspec("ps", "--json").document["deployments"] == []


@pytest.mark.parametrize("case", LATER)
def test_docker_container_failure_is_reported_as_compose_up_and_recorded(
    case: str, tool: Path, artifact: Path, trtspec: Run
) -> None:
    said, message = LATER[case]
    breaks(tool, "up", said)
    done = deploy_docker(trtspec, artifact)
    assert f"error: docker compose up failed: {message}" in done.err
    assert trtspec("status", "tiny", "--json").document["state"] == "failed"
    assert message in trtspec("history", "tiny").out.replace("\n", " ") or message in str(
        trtspec("history", "tiny", "--json").document
    )
    assert trtspec("rm", "tiny").code == 0
    assert trtspec("ps").out == "no deployments\n"


def test_docker_failure_with_unknown_cause_quotes_its_output() -> None:
    error = tool_failure(DOCKER_CAUSES, "docker compose up", 17, "a\nthe moon is full\n")
    assert error.message == "docker compose up ended with status 17"
    assert error.hint == "a\nthe moon is full"


def test_unreachable_docker_daemon_makes_a_deployment_unknown_not_dead(
    tool: Path, artifact: Path, trtspec: Run
) -> None:
    assert deploy_docker(trtspec, artifact).code == 0
    breaks(tool, "compose", DOCKER["no daemon"][0])
    assert trtspec("status", "tiny", "--json").document["state"] == "unknown"
    refused = trtspec("rm", "tiny")
    assert (refused.code, "'tiny' is unknown" in refused.err) == (1, True)
    forced = trtspec("rm", "--force", "tiny", "--json")
    assert "the docker daemon is not reachable" in forced.document["removed"][0]["left"]
    assert trtspec("ps").out == "no deployments\n"


def test_docker_record_is_retained_when_the_next_deploy_cannot_start(tool: Path, artifact: Path, trtspec: Run) -> None:
    assert deploy_docker(trtspec, artifact).code == 0
    assert trtspec("stop", "tiny").code == 0
    before = DeploymentJournal("tiny").read_existing()
    breaks(tool, "compose", DOCKER["no daemon"][0])
    assert deploy_docker(trtspec, artifact).code == 1
    assert DeploymentJournal("tiny").read_existing() == before


@pytest.mark.parametrize("case", KUBECTL)
def test_kubectl_failure_names_its_cause_and_leaves_no_deployment(
    case: str, tool: Path, artifact: Path, trtspec: Run
) -> None:
    verb, said, message = KUBECTL[case]
    breaks(tool, verb, said)
    done = deploy_kubectl(trtspec, artifact)
    assert done.code == 1
    assert f"error: kubectl {verb} failed: {message}" in done.err
    assert trtspec("ps", "--json").document["deployments"] == []


@pytest.mark.parametrize("case", APPLIED)
def test_kubectl_apply_failure_is_recorded(case: str, tool: Path, artifact: Path, trtspec: Run) -> None:
    said, message = APPLIED[case]
    breaks(tool, "apply", said)
    assert f"error: kubectl apply failed: {message}" in deploy_kubectl(trtspec, artifact).err
    assert trtspec("status", "tiny", "--json").document["state"] == "failed"


def test_kubectl_permission_error_during_rollout_is_not_a_timeout(tool: Path, artifact: Path, trtspec: Run) -> None:
    breaks(tool, "rollout", APPLIED["forbidden"][0])
    done = deploy_kubectl(trtspec, artifact)
    assert (done.code, "kubectl rollout failed: this user lacks permission" in done.err) == (1, True)
    breaks(tool, "rollout", "error: timed out waiting for the condition")
    late = deploy_kubectl(trtspec, artifact)
    assert (late.code, "the pods were not ready in time" in late.err) == (101, True)
