# SPDX-License-Identifier: Apache-2.0
"""Kubernetes target: manifests rendered for an artifact, applied, watched and deleted with kubectl.

The manifests are a base for any cluster, components for operators, and overlays of both. A pod is ready once it has
answered a request.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from trtspec.core.container_tools import KUBECTL_CAUSES, ToolFailed, run_tool
from trtspec.core.errors import DeployError, StepTimeout, TrtspecError
from trtspec.core.files import read_bounded, replace_file
from trtspec.core.ports import LOOPBACK
from trtspec.deployment.containers import (
    MAX_GRACE_S,
    PORTS,
    ContainerWorkload,
    RenderedFiles,
    as_yaml,
    check_image,
    dockerfile,
    make_workload,
    write_rendered,
)
from trtspec.deployment.journal import (
    DeploymentJournal,
    DeploymentRecord,
    RunningDeployment,
    deploy_document,
    staged_record,
)
from trtspec.deployment.options import DeployOptions
from trtspec.deployment.target import DeployTarget
from trtspec.deployment.targets.kubernetes import operators, workloads
from trtspec.deployment.targets.kubernetes.settings import ClusterSettings, ClusterWorkload, cluster_workload
from trtspec.store.artifact import Artifact
from trtspec.store.artifact_paths import REPOSITORY

HEAD = """\
Serves {name} in the namespace {namespace}: kubectl apply -k overlays/NAME
NAME is one of {overlays}.

Ports, inside the cluster only: http {http}, gRPC {grpc}, OpenAI gateway {openai}, metrics {metrics}.
The network policy admits this namespace and the gateway's ({gateway}), and Prometheus (namespace monitoring)
to the metrics; egress is {egress}. Only the OpenAI gateway supports keys, which it reads from the Secret {name}-env
(optional, not rendered). Triton's control APIs require a token that is created in each container and never leaves it.
The pods conform to the Pod Security profile "restricted"."""

ALONE = """\
Serves {name} in the namespace {namespace} with the engine alone: kubectl apply -f {file}

The engine's own OpenAI API listens without a key; authentication is up to the cluster's gateway. trtspec's models,
metrics and gates are not included."""

# The components of each overlay. NEEDS has the requirements of each component.
OVERLAYS: Mapping[str, tuple[str, ...]] = {
    "plain": (),
    "monitored": ("monitoring",),
    "scaled": ("monitoring", "keda"),
    "scaled-hpa": ("monitoring", "hpa"),
    "canary": ("monitoring", "gateway"),
}
NEEDS = {
    "monitoring": "The Prometheus operator (monitoring.coreos.com/v1).",
    "keda": "KEDA 2 (keda.sh/v1alpha1).",
    "hpa": "prometheus-adapter, which exposes the queues per pod in the metrics API.",
    "gateway": "Gateway API 1 and the inference extension 1 (InferencePool v1), whose chart installs {name}-epp.",
}
DEFAULT_OVERLAY = "plain"


def render_kubernetes(workload: ContainerWorkload, repository: Path) -> RenderedFiles:
    """Return the manifests and the Dockerfile of a workload; without an image, only the Dockerfile.

    Manifests contain the image's digest, which exists only after the image is built. Raises DeployError for invalid
    options.
    """
    options = workload.options
    if options.host != LOOPBACK or options.ports:
        raise DeployError("a cluster's service has its own address and ports", hint="omit --host and the port options")
    wanted = cluster_workload(workload)
    settings = wanted.settings
    if not settings.image and settings.form == "deployment":
        return {"Dockerfile": dockerfile(workload)}
    settings.check()
    check_image(settings.image, workload)
    if settings.form != "deployment":
        return _alone(wanted, repository)
    head = HEAD.format(
        name=wanted.name,
        namespace=settings.namespace,
        gateway=settings.gateway.partition("/")[0],
        overlays=", ".join(OVERLAYS),
        egress="limited to the registry's port and HTTPS" if settings.pulls else "denied",
        **PORTS,
    )
    base = {
        "workload.yaml": workloads.workload_object(wanted),
        "service.yaml": workloads.service(wanted),
        "disruption-budget.yaml": workloads.disruption_budget(wanted),
        "network-policy.yaml": workloads.network_policy(wanted),
    }
    files = _directory("base", "Kustomization", head, base)
    components = {
        "monitoring": {"pod-monitor.yaml": operators.pod_monitor(wanted)},
        "keda": {"scaled-object.yaml": operators.scaled_object(wanted)},
        "hpa": {"autoscaler.yaml": operators.autoscaler(wanted)},
        "gateway": {"inference-pool.yaml": operators.inference_pool(wanted), "route.yaml": operators.route(wanted)},
    }
    for name, objects in components.items():
        needs = f"Requires: {NEEDS[name].format(name=wanted.name)}"
        files |= _directory(f"components/{name}", "Component", needs, objects)
    for overlay, names in OVERLAYS.items():
        chosen = {"components": [f"../../components/{name}" for name in names]} if names else {}
        lists = {"resources": ["../../base"], **chosen}
        files[f"overlays/{overlay}/kustomization.yaml"] = _kustomization("Kustomization", lists)
    return files | {"Dockerfile": dockerfile(workload)}


def _directory(path: str, kind: str, head: str, objects: Mapping[str, Mapping[str, Any]]) -> RenderedFiles:
    """Return the files of a directory: one per object, and a kustomization that lists them."""
    files = {f"{path}/kustomization.yaml": _kustomization(kind, {"resources": [*objects]}, head)}
    return files | {f"{path}/{file}": as_yaml(document) for file, document in objects.items()}


def _kustomization(kind: str, lists: Mapping[str, Any], head: str = "") -> str:
    version = "v1alpha1" if kind == "Component" else "v1beta1"
    return as_yaml({"apiVersion": f"kustomize.config.k8s.io/{version}", "kind": kind, **lists}, head=head)


def _alone(workload: ClusterWorkload, repository: Path) -> RenderedFiles:
    make = {"kserve": operators.llm_inference_service, "dynamo": operators.graph_deployment}[workload.settings.form]
    file = f"{workload.settings.form}.yaml"
    head = ALONE.format(name=workload.name, namespace=workload.settings.namespace, file=file)
    return {file: as_yaml(*make(workload, repository), head=head)}


KUBECTL = "kubectl"
ASK_S = 20.0
TIMED_OUT = "timed out waiting"
MAX_PLACE_BYTES = 1 << 16
PLACE = ("context", "namespace", "name", "kind", "form")
READY = {"leaderworkerset": "Available", "llminferenceservice": "Ready", "dynamographdeployment": "Ready"}
DETACH = "the cluster runs it independently of this process; use --detach"
CANARY = "add --render DIR, then: kubectl apply -k DIR/overlays/canary"


def deploy_kubernetes(journal: DeploymentJournal, artifact: Artifact, options: DeployOptions) -> ClusterDeployment:
    """Apply the manifests and return once every pod is ready; after a failure, the applied objects remain."""
    if not options.detach:
        raise DeployError("--target kubernetes requires --detach", hint=DETACH)
    if shutil.which(KUBECTL) is None:
        hint = "install it, or render the manifests for another machine with --render DIR"
        raise DeployError(f"{KUBECTL} is not on PATH", hint=hint)
    workload = cluster_workload(make_workload(artifact, options))
    check_image(workload.settings.image, workload)
    if workload.settings.canary_of and workload.settings.form == "deployment":
        raise DeployError("option canary-of: deploy applies overlays/plain, which shares no requests", hint=CANARY)
    rendered, former = render_kubernetes(workload, artifact.root / REPOSITORY), journal.read()
    with _forgotten_on_failure(journal, former):
        write_rendered(_folder(journal), rendered)
        place = _save_cluster(journal, workload)
    host = f"{workload.name}.{workload.settings.namespace}.svc"
    record = staged_record(journal.name, artifact, target="kubernetes", host=host, detached=True, **PORTS)
    record = journal.write(record)
    options.on_event("staged", f"the manifests are in {_folder(journal)}")
    with _forgotten_on_failure(journal, former, record):
        _run(place, "apply", *place["what"])
    options.on_event("loaded", f"applied to the context {place['context']}, namespace {place['namespace']}")
    _wait_ready(place, options.timeout_s)
    record = journal.move(record, "live")
    options.on_event("live", "every pod has answered a request")
    return ClusterDeployment(journal, record)


@contextmanager
def _forgotten_on_failure(
    journal: DeploymentJournal, former: DeploymentRecord | None, record: DeploymentRecord | None = None
) -> Iterator[None]:
    """Context manager that corrects the deployment's record after an error.

    The former record is restored. Without one, the record is removed if nothing was applied, else marked failed.
    """
    try:
        yield
    except TrtspecError as error:
        if former or record is None or (isinstance(error, ToolFailed) and error.is_before):
            journal.forget(former)
        else:
            journal.move(record, "failed", error.message)
        raise


class ClusterDeployment(RunningDeployment):
    """A deployment in a cluster whose pods became ready."""

    def wait(self) -> None:
        """Raise DeployError: a cluster deployment does not have a local process."""
        raise DeployError(DETACH)


def state(record: DeploymentRecord) -> str:
    """Return "live" if all replicas are ready, "unhealthy" if only some are, and "starting" if none is.

    A ready pod answers a probe request every ten seconds. Return "unknown" if the cluster cannot be queried.
    """
    if record.state in ("stopped", "failed"):
        return record.state
    try:
        place = _read_cluster(DeploymentJournal(record.name))
        found = json.loads(_run(place, "get", place["object"], "--output=json", timeout_s=ASK_S))
    except (DeployError, StepTimeout, ValueError):
        return "unknown"
    return _parse_state(found)


def stop(name: str) -> dict[str, Any]:
    """Delete the applied objects; open streams may finish, and the namespace and its volumes remain."""
    journal = DeploymentJournal(name)
    record = journal.read_existing()
    was_running = state(record) not in ("stopped", "failed", "dead")
    if record.state != "stopped":
        place = _read_cluster(journal)
        _run(place, "delete", *place["what"], "--ignore-not-found", "--wait", timeout_s=MAX_GRACE_S)
        record = journal.move(record, "stopped")
    return deploy_document(record) | {"was_running": was_running}


def fetch_log(journal: DeploymentJournal) -> None:
    """Save the last lines of the pods' logs as the deployment's log on this machine."""
    journal.read_existing()
    place = _read_cluster(journal)
    chosen = [f"--selector=app.kubernetes.io/name={place['name']}", "--all-containers", "--tail=1000"]
    journal.log.write_bytes(_run(place, "logs", *chosen, timeout_s=ASK_S))


def _parse_state(found: dict[str, Any]) -> str:
    status, condition = found.get("status", {}), READY.get(str(found.get("kind")).lower())
    if condition and "readyReplicas" not in status:  # KServe and Dynamo do not report replicas in this field
        said = {each.get("type"): each.get("status") for each in status.get("conditions", [])}
        return "live" if said.get(condition) == "True" else "starting"
    wanted, ready = found.get("spec", {}).get("replicas", 1), status.get("readyReplicas", 0)
    return "live" if ready >= wanted else "unhealthy" if ready else "starting"


def _wait_ready(place: Mapping[str, Any], timeout_s: float) -> None:
    condition = READY.get(place["kind"])
    words = ["wait", f"--for=condition={condition}"] if condition else ["rollout", "status"]
    try:
        _run(place, *words, place["object"], f"--timeout={int(timeout_s)}s", timeout_s=timeout_s + ASK_S)
    except ToolFailed as error:
        if TIMED_OUT not in (error.hint or ""):
            raise
        hint = f"trtspec logs {place['name']}; kubectl rollout undo restores the previous version\n{error.hint or ''}"
        raise StepTimeout("the pods were not ready in time", hint=hint.strip()) from None


def _save_cluster(journal: DeploymentJournal, workload: ClusterWorkload) -> dict[str, Any]:
    """Record the cluster's context, so that later commands use it even if kubectl's current context has changed."""
    settings = workload.settings
    context = settings.context or _plain([KUBECTL, "config", "current-context"]).decode().strip()
    kinds = {"kserve": "llminferenceservice", "dynamo": "dynamographdeployment"}
    several = settings.form == "deployment" and workload.machines > 1
    place = {
        "context": context,
        "namespace": settings.namespace,
        "name": workload.name,
        "kind": kinds.get(settings.form, "leaderworkerset" if several else "deployment"),
        "form": settings.form,
    }
    path = journal.root / "cluster.json"
    replace_file(path, json.dumps(place).encode())
    return _read_cluster(journal)


def _read_cluster(journal: DeploymentJournal) -> dict[str, Any]:
    path = journal.root / "cluster.json"
    try:
        place: dict[str, Any] = json.loads(read_bounded(path, MAX_PLACE_BYTES))
        if not isinstance(place, dict) or not all(isinstance(place.get(key), str) for key in PLACE):
            raise ValueError(f"required keys: {', '.join(PLACE)}")
    except (OSError, ValueError, RecursionError) as error:
        raise DeployError(f"cannot be read: {error}", where=str(path), hint="deploy it again") from None
    plain = place["form"] == "deployment"
    file = f"overlays/{DEFAULT_OVERLAY}" if plain else f"{place['form']}.yaml"
    what = ["--kustomize" if plain else "--filename", str(_folder(journal) / file)]
    return place | {"what": what, "object": f"{place['kind']}/{place['name']}"}


def _run(place: Mapping[str, Any], *words: str, timeout_s: float = 60.0) -> bytes:
    """Run kubectl in a deployment's context and namespace and return its output."""
    return _plain([KUBECTL, f"--context={place['context']}", f"--namespace={place['namespace']}", *words], timeout_s)


def _plain(command: list[str], timeout_s: float = ASK_S) -> bytes:
    """Run a kubectl command and return its output; raises DeployError or StepTimeout if it fails."""
    verb = next((word for word in command[1:] if not word.startswith("-")), "")
    return run_tool(command, f"{KUBECTL} {verb}", KUBECTL_CAUSES, timeout_s)


def _folder(journal: DeploymentJournal) -> Path:
    return journal.root / "kubernetes"


TARGET = DeployTarget(
    deploy=deploy_kubernetes,
    stop=stop,
    state=state,
    render=render_kubernetes,
    options={each.name.replace("_", "-"): each.metadata["description"] for each in fields(ClusterSettings)},
    fetch_log=fetch_log,
    pulls=True,
)
