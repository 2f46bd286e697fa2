# SPDX-License-Identifier: Apache-2.0
"""The kubernetes target: acceptance by a cluster, pod permissions, and kubectl commands (run by a double)."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import Run
from tests.deployment import accepted
from tests.deployment.manifests import IMAGE, manifest, workload_of
from tests.doubles.fixtures import Installation
from trtspec.core.errors import DeployError
from trtspec.deployment.target import find_target
from trtspec.deployment.targets.kubernetes import _parse_state
from trtspec.store.artifact import Manifest

PVC = "pvc:models/tiny"
SPANNING = {"target": {"model": "./t", "parallel": {"tensor": 8, "pipeline": 2}}}


def rendered(found: Manifest | None = None, repository: Path = Path(), name: str | None = None, **settings: str):
    words = {"image": IMAGE, "artifact": PVC} | {key.replace("_", "-"): value for key, value in settings.items()}
    render = find_target("kubernetes").render
    assert render
    return render(workload_of(found or manifest(), name, settings=words), repository)


def document(files: dict[str, str], kind: str) -> dict[str, Any]:
    return next(each for each in accepted.documents(files) if each["kind"] == kind)


def container(files: dict[str, str], kind: str = "Deployment") -> dict[str, Any]:
    return next(iter(accepted.pods(document(files, kind))))["containers"][0]


@pytest.fixture
def artifact(workplace: Path) -> Path:
    folder = workplace / "build" / "tiny"
    (folder / "model_repository").mkdir(parents=True)
    (folder / "manifest.json").write_bytes(manifest().render())
    return folder


@pytest.fixture
def kubectl(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path_factory.mktemp("kubectl")
    Installation(root).add_program("kubectl", KUBECTL_DOUBLE=str(root))
    monkeypatch.setenv("PATH", str(root / "bin"), prepend=":")
    return root


VOLUMES = {
    PVC: {"persistentVolumeClaim": {"claimName": "models", "readOnly": True}},
    f"image:{IMAGE}": {"image": {"reference": IMAGE, "pullPolicy": "IfNotPresent"}},
    f"modelpack:{IMAGE}": {
        "csi": {
            "driver": "model.csi.modelpack.org",
            "readOnly": True,
            "volumeAttributes": {"model.csi.modelpack.org/reference": IMAGE},
        }
    },
    f"oci:{IMAGE}": {"emptyDir": {"sizeLimit": "2Gi"}},
}


@pytest.mark.slow
@pytest.mark.parametrize("artifact_from", VOLUMES)
def test_manifests_are_valid_for_every_artifact_volume(artifact_from: str) -> None:
    files = rendered(artifact=artifact_from)
    assert accepted.problems(files) == []
    pod = next(iter(accepted.pods(document(files, "Deployment"))))
    assert pod["volumes"][0] == {"name": "artifact", **VOLUMES[artifact_from]}
    assert pod["containers"][0]["volumeMounts"][0]["readOnly"]


def test_rendering_is_deterministic() -> None:
    assert rendered() == rendered()


def test_kustomizations_reference_existing_files() -> None:
    files = rendered()
    for path, text in files.items():
        if path.endswith("kustomization.yaml"):
            wanted = yaml.safe_load(text)
            for each in (*wanted["resources"], *wanted.get("components", ())):
                place = os.path.normpath(f"{os.path.dirname(path)}/{each}")
                assert place in files or f"{place}/kustomization.yaml" in files


def test_probes_request_text_and_tolerate_brief_failures() -> None:
    found = container(rendered())
    for name in ("startupProbe", "readinessProbe", "livenessProbe"):
        command = found[name]["exec"]["command"]
        assert command[:3] == ["python3", "-m", "trtspec.deployment.health"]
        assert found[name]["timeoutSeconds"] > int(command[-1].partition("=")[2])
        assert found[name]["failureThreshold"] >= 3
    alive, ready = found["livenessProbe"], found["readinessProbe"]
    assert alive["periodSeconds"] * alive["failureThreshold"] > ready["periodSeconds"] * ready["failureThreshold"]


def test_startup_probe_allows_time_to_load_the_weights() -> None:
    found = container(rendered(manifest("llmapi", 400 << 30)))
    seconds = found["startupProbe"]["periodSeconds"] * found["startupProbe"]["failureThreshold"]
    assert seconds >= 2000
    assert f"--timeout={seconds}" in found["command"]


def test_termination_grace_period_covers_the_longest_stream() -> None:
    files = rendered(manifest(engine={"max_seq_len": 8192}))
    pod = next(iter(accepted.pods(document(files, "Deployment"))))
    sleep = pod["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod["terminationGracePeriodSeconds"] > sleep + 8192 // 20


def test_resource_limits_cover_the_weights_and_gpus() -> None:
    found = container(rendered(manifest("llmapi", 50 << 30)))
    assert found["resources"]["limits"]["nvidia.com/gpu"] == found["resources"]["requests"]["nvidia.com/gpu"] == "1"
    assert int(found["resources"]["limits"]["memory"][:-2]) >= 50 + 2
    assert "nvidia.com/gpu" not in container(rendered())["resources"]["limits"]


def test_engine_pods_require_nodes_with_their_gpu() -> None:
    files = rendered(manifest("llmapi", engine={"gpu": "h200"}))
    wanted = document(files, "Deployment")["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    terms = wanted["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"][0]["matchExpressions"]
    assert [(each["key"], each["values"]) for each in terms] == [
        ("nvidia.com/gpu.compute.major", ["9"]),
        ("nvidia.com/gpu.compute.minor", ["0"]),
    ]


def test_secrets_are_referenced_but_not_rendered() -> None:
    files = rendered()
    assert container(files)["envFrom"] == [{"secretRef": {"name": "tiny-env", "optional": True}}]
    assert "Secret" not in {each["kind"] for each in accepted.documents(files)}
    assert {"HF_TOKEN"}.isdisjoint(each["name"] for each in container(files)["env"])


def test_network_policy_denies_egress_and_limits_ingress() -> None:
    spec = document(rendered(gateway="edge/main"), "NetworkPolicy")["spec"]
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    assert spec["egress"] == []
    assert "edge" in json.dumps(spec["ingress"][0])
    assert [port["port"] for port in spec["ingress"][1]["ports"]] == [8002, 9000]


def test_autoscaler_uses_queue_and_kv_cache_metrics() -> None:
    files = rendered(manifest("tensorrt_llm"), namespace="serving")
    triggers = document(files, "ScaledObject")["spec"]["triggers"]
    assert [each["name"] for each in triggers] == ["queue", "kv-cache"]
    queue, cache = (each["metadata"]["query"] for each in triggers)
    assert "nv_inference_pending_request_count" in queue
    assert "trtspec_requests_waiting" in queue
    assert cache == (
        'avg(nv_trt_llm_kv_cache_block_metrics{namespace="serving", pod=~"tiny(-[a-z0-9]+){2}", '
        'kv_cache_block_type="fraction"})'
    )
    assert len(document(rendered(), "ScaledObject")["spec"]["triggers"]) == 1


@pytest.mark.parametrize("backend", ["embedded", "tensorrt_llm", "llmapi", "sglang", "edge_llm", "vllm"])
def test_autoscaler_uses_metrics_that_the_backend_exports(backend: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    row = next(line for line in page.splitlines() if line.startswith("| `trtspec_requests_waiting`"))
    assert backend in row.split("|")[-2].strip().split(", ")  # tests/report/monitoring compares the page with the code
    assert "trtspec_requests_waiting" in str(document(rendered(manifest(backend)), "ScaledObject"))


def test_autoscaler_threshold_is_within_the_queue() -> None:
    for queue, threshold in ((128, "8"), (6, "3"), (1, "1")):
        found = manifest(engine={"max_batch_size": 8}, serving={"max_queue_size": queue})
        triggers = document(rendered(found), "ScaledObject")["spec"]["triggers"]
        assert triggers[0]["metadata"]["threshold"] == threshold


@pytest.mark.slow
def test_canary_shares_the_stable_route_by_weight() -> None:
    alone = document(rendered(), "HTTPRoute")
    assert [(each["name"], each["weight"]) for each in alone["spec"]["rules"][0]["backendRefs"]] == [("tiny", 100)]
    files = rendered(name="tiny-new", canary_of="tiny", weight="25")
    found = document(files, "HTTPRoute")
    assert found["metadata"]["name"] == "tiny"
    shares = [(each["kind"], each["name"], each["weight"]) for each in found["spec"]["rules"][0]["backendRefs"]]
    assert shares == [("InferencePool", "tiny", 75), ("InferencePool", "tiny-new", 25)]
    assert accepted.problems(files) == []


@pytest.mark.parametrize(
    ("backend", "version", "named"),
    [
        ("vllm", "0.27.1", "--served-model-name=tiny"),
        ("sglang", "0.5.23", "--served-model-name=tiny"),
        ("llmapi", "1.4.0rc1", "--served_model_name=tiny"),
        ("llmapi", "1.3.0rc29", "--served_model_name=tiny"),
        ("llmapi", "1.2.1", None),
    ],
)
def test_kserve_names_the_model_with_an_option_of_the_server(
    backend: str, version: str, named: str | None, tmp_path: Path
) -> None:
    """trtllm-serve has Click options with underscores: it rejects --served-model-name, and up to 1.2 has no name."""
    repository = engine_repository(backend, tmp_path)
    kserve = rendered(manifest(backend, engine={"version": version}), repository, form="kserve")
    command = next(iter(accepted.pods(document(kserve, "LLMInferenceService"))))["containers"][0]["command"]
    assert [word for word in command if "served" in word] == ([named] if named else [])


def test_multi_node_engine_uses_a_leader_worker_set() -> None:
    files = rendered(manifest("vllm", **SPANNING))
    found = document(files, "LeaderWorkerSet")["spec"]["leaderWorkerTemplate"]
    assert found["size"] == 2
    leader, worker = (next(iter(accepted.pods(found[key]))) for key in ("leaderTemplate", "workerTemplate"))
    assert "exec trtspec deploy /artifact" in leader["containers"][0]["command"][-1]
    assert "$LWS_LEADER_ADDRESS" in worker["containers"][0]["command"][-1]
    assert leader["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "8"
    assert document(files, "Service")["spec"]["selector"]["leaderworkerset.sigs.k8s.io/worker-index"] == "0"
    assert accepted.problems(files) == []


@pytest.mark.parametrize(
    ("backend", "sections", "settings", "said"),
    [
        (
            "tensorrt_llm",
            SPANNING,
            {},
            "16 GPUs, 8 per machine: tensorrt_llm does not support serving over several machines",
        ),
        ("vllm", SPANNING, {"node_gpus": "6"}, "16 GPUs do not fill machines of 6"),
        ("embedded", {}, {"artifact": "s3:x"}, "'s3:x' is not an artifact location"),
        ("embedded", {}, {"artifact": "pvc:models/../other"}, "is not an artifact location"),
        ("embedded", {}, {"artifact": "image:name:tag"}, "is not an artifact location"),
        ("embedded", {}, {"namespace": "A"}, "option namespace: 'A' is not a DNS label"),
        ("embedded", {}, {"gateway": "main"}, "option gateway: '' is not a DNS label"),
        ("embedded", {}, {"replicas": "x"}, "option replicas: 'x' is not a whole number"),
        ("embedded", {}, {"replicas": "9"}, "a number is out of range"),
        ("embedded", {}, {"weight": "101"}, "a number is out of range"),
        ("embedded", {}, {"prometheus": "x\ny"}, "is not a URL"),
        ("embedded", {}, {"dynamo-version": "01.2.3"}, "option dynamo-version: '01.2.3' is not a version"),
        ("embedded", {}, {"form": "helm"}, "'helm' is not one of deployment, kserve, dynamo"),
        (
            "embedded",
            {},
            {"form": "dynamo"},
            "form dynamo requires an engine that serves without Triton, which embedded does not",
        ),
        ("vllm", {}, {"form": "kserve", "artifact": f"oci:{IMAGE}"}, "requires an image with trtspec that pulls"),
        ("embedded", {}, {"artifact": "oci:registry.example/tiny:v1"}, "is not an artifact location"),
        ("embedded", {}, {"artifact": "oci"}, "is not an artifact location"),
        ("embedded", {}, {"pull_image": "name:tag"}, "option pull-image: 'name:tag' is not an image with a digest"),
        ("embedded", {}, {"pull_secret": "A"}, "option pull-secret: 'A' is not a DNS label"),
        ("embedded", {}, {"registry_cidr": "10.0.0.0/33"}, "option registry-cidr: '10.0.0.0/33' is not a network"),
        ("embedded", {}, {"image": "name:tag"}, "is not an image with a digest"),
    ],
)
def test_unsupported_manifest_or_option_is_an_error(backend: str, sections: dict, settings: dict, said: str) -> None:
    with pytest.raises(DeployError) as caught:
        rendered(manifest(backend, **sections), **settings)
    assert said in str(caught.value)


MODEL = "../../checkpoints/target"
DRAFT = {"method": "eagle3", "model": "../../checkpoints/draft"}
DOCUMENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "vllm": (
        "vllm_model/1/model.json",
        {"model": MODEL, "max_model_len": 64, "enforce_eager": True, "speculative_config": DRAFT},
    ),
    "sglang": ("tensorrt_llm/1/engine.json", {"model_path": MODEL, "skip_tokenizer_init": True}),
    "llmapi": (
        "tensorrt_llm/1/model.yaml",
        {"model": MODEL, "max_seq_len": 64, "triton_config": {"decoupled": True}},
    ),
}


def engine_repository(backend: str, folder: Path) -> Path:
    """Write the files in the model repository that configure the engine."""
    path, arguments = DOCUMENTS[backend]
    (folder / path).parent.mkdir(parents=True)
    (folder / path).write_text(json.dumps(arguments))
    return folder


COMMANDS = {
    "vllm": [
        "python3",
        "-m",
        "dynamo.vllm",
        "--model=/artifact/checkpoints/target",
        "--max-model-len=64",
        "--enforce-eager",
        '--speculative-config={"method": "eagle3", "model": "/artifact/checkpoints/draft"}',
        "--served-model-name=tiny",
    ],
    "sglang": [
        "python3",
        "-m",
        "dynamo.sglang",
        "--model-path=/artifact/checkpoints/target",
        "--served-model-name=tiny",
    ],
    "llmapi": [
        "python3",
        "-m",
        "dynamo.trtllm",
        "--model=/artifact/checkpoints/target",
        "--extra-engine-args=/config/llm.yaml",
        "--served-model-name=tiny",
    ],
}


@pytest.mark.parametrize("backend", COMMANDS)
def test_dynamo_and_kserve_start_the_engine_directly(backend: str, tmp_path: Path) -> None:
    repository = engine_repository(backend, tmp_path)
    dynamo = rendered(manifest(backend), repository, form="dynamo")
    assert accepted.problems(dynamo) == []
    spec = document(dynamo, "DynamoGraphDeployment")["spec"]
    assert [each["type"] for each in spec["components"]] == ["frontend", "worker"]
    assert spec["components"][1]["podTemplate"]["spec"]["containers"][0]["command"] == COMMANDS[backend]
    kserve = rendered(manifest(backend), repository, form="kserve", canary_of="tiny-old", weight="1")
    assert accepted.problems(kserve) == []
    found = document(kserve, "LLMInferenceService")["spec"]
    assert found["model"]["uri"] == "pvc://models/tiny"
    assert found["router"]["route"] == {"group": "tiny-old", "weight": 1}
    assert any("/mnt/models/checkpoints/target" in word for word in found["template"]["containers"][0]["command"])


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"name": "Frontend"}, "lowerAscii"),
        ({"name": "w" * 64}, "size() <= 63"),
        ({"replicas": -1}, "replicas >= 0"),
        ({"runtimeVersionOverride": "1.6"}, "runtimeVersionOverride.matches"),
        ({"colour": "red"}, "colour: unknown field"),
        ({"name": None}, "None is not a str"),
        ({"type": "epp2"}, "is not one of frontend|worker"),
        ({"sharedMemorySize": 8.5}, "8.5 is not a str"),
        ({"podTemplate": {"spec": {"containers": [{"name": "other"}]}}}, "k.name == 'main'"),
    ],
)
def test_schema_check_detects_dynamo_crd_violations(change: dict[str, Any], rule: str, tmp_path: Path) -> None:
    repository = engine_repository("vllm", tmp_path)
    graph = document(rendered(manifest("vllm"), repository, form="dynamo"), "DynamoGraphDeployment")
    assert accepted.problems_of(graph) == []
    graph["spec"]["components"][1].update(change)
    assert any(rule in problem for problem in accepted.problems_of(graph))


def test_kserve_config_map_has_the_engine_settings_and_is_mounted(tmp_path: Path) -> None:
    files = rendered(manifest("llmapi"), engine_repository("llmapi", tmp_path), form="kserve")
    config = document(files, "ConfigMap")
    assert yaml.safe_load(config["data"]["llm.yaml"]) == {"max_seq_len": 64}
    pod = document(files, "LLMInferenceService")["spec"]["template"]
    assert {"name": "config", "configMap": {"name": config["metadata"]["name"]}} in pod["volumes"]


def test_manifest_checks_detect_each_violation() -> None:
    """Unknown field, wrong type, value out of range, privileged pod, violated rule."""
    found = document(rendered(), "Deployment")
    for change, said in (
        (lambda each: each["spec"].update(colour="red"), "colour"),
        (lambda each: each["spec"].update(replicas="1"), "'1'"),
        (lambda each: each["metadata"].update(name="a.b"), "not a DNS label"),
        (lambda each: next(accepted.pods(each))["containers"][0].pop("securityContext"), "escalates"),
        (lambda each: next(accepted.pods(each)).update(hostNetwork=True), "hostNetwork"),
        (lambda each: next(accepted.pods(each))["containers"][0]["env"].append({"name": "HOME"}), "('HOME',) is there"),
        (
            lambda each: next(accepted.pods(each))["volumes"].append({"name": "h", "hostPath": {"path": "/"}}),
            "hostPath",
        ),
    ):
        changed = copy.deepcopy(found)
        change(changed)
        assert said in " ".join(accepted.problems_of(changed))
    pool = document(rendered(), "InferencePool")
    del pool["spec"]["endpointPickerRef"]["port"]
    assert any("has(self.endpointPickerRef.port)" in each for each in accepted.problems_of(pool))
    pool["spec"]["targetPort"] = 1
    assert any("unknown field" in each for each in accepted.problems_of(pool))


CRD = """
spec:
  group: example.com
  names: {kind: Thing}
  versions:
    - name: v1
      schema:
        openAPIV3Schema:
          type: object
          properties:
            spec:
              type: object
              properties:
                size: {x-kubernetes-int-or-string: true, anyOf: [{type: integer}, {type: string}], pattern: "^[0-9]+$"}
                share: {type: integer, minimum: 0, exclusiveMinimum: true}
                restart: {type: string}
                parts:
                  type: array
                  items: {type: object, properties: {name: {type: string}, of: {type: string, default: a}}}
                  x-kubernetes-list-map-keys: [name, of]
                labels: {type: object, maxProperties: 1, additionalProperties: {type: string}}
              x-kubernetes-validations:
                - {rule: "oldSelf.hasValue() || !has(self.restart)", optionalOldSelf: true, message: not at first}
                - {rule: "self.size == oldSelf.size", message: never the same}
"""


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"size": 8, "share": 1, "parts": [{"name": "a"}, {"name": "a", "of": "b"}], "labels": {"a": "b"}}, []),
        ({"size": "8"}, []),
        ({"size": 8.5}, ["8.5 is not of type 'integer', 'string'", "is not valid under any"]),
        ({"size": "8Gi"}, ["does not match"]),
        ({"share": 0}, ["less than or equal to the minimum"]),
        ({"restart": "x"}, ["not at first"]),
        ({"parts": [{"name": "a"}, {"name": "a", "of": "a"}]}, ["parts: ('a', 'a') is there 2 times"]),
        ({"labels": {"a": "b", "c": "d"}}, ["too many properties"]),
    ],
)
def test_crd_schema_violations_are_reported(
    spec: dict[str, Any], said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "crd.yaml").write_text(CRD)
    monkeypatch.setenv(accepted.VARIABLE, str(tmp_path))
    accepted.real_schemas.cache_clear()
    found = accepted.real_problems({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {}, "spec": spec})
    accepted.real_schemas.cache_clear()
    assert len(found) == len(said)
    assert all(any(word in problem for problem in found) for word in said), found


@pytest.mark.skipif(accepted.VARIABLE not in os.environ, reason=f"{accepted.VARIABLE} names no directory with CRDs")
def test_manifests_conform_to_the_operators_crd_schemas(tmp_path: Path) -> None:
    sets = [rendered(), rendered(manifest("vllm", **SPANNING)), rendered(name="b", canary_of="tiny")]
    for backend in COMMANDS:
        repository = engine_repository(backend, tmp_path / backend)
        sets += [rendered(manifest(backend), repository, form=form) for form in ("kserve", "dynamo")]
    checked = 0
    for each in (each for files in sets for each in accepted.documents(files)):
        if f"{each['apiVersion']} {each['kind']}" in accepted.real_schemas():
            assert accepted.real_problems(each) == []
            checked += 1
    assert checked


@pytest.mark.slow
def test_kubernetes_deployment_lifecycle_from_deploy_to_stop(artifact: Path, trtspec: Run, kubectl: Path) -> None:
    words = [
        "--target",
        "kubernetes",
        "--image",
        IMAGE,
        "--target-option",
        f"artifact={PVC}",
        "--target-option",
        "namespace=serving",
    ]
    done = trtspec("deploy", artifact, *words, "--detach", "--json")
    assert done.code == 0, done.err
    assert done.document["state"] == "live"
    assert done.document["endpoints"]["http"] == "http://tiny.serving.svc:8000"
    assert json.loads((kubectl / "applied").read_text()) == sorted(
        ["Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy"]
    )
    assert trtspec("status", "tiny", "--json").document["state"] == "live"
    assert "the pods said this" in trtspec("logs", "tiny").out
    assert trtspec("logs", "tiny", "--follow").code == 1
    assert trtspec("stop", "tiny", "--json").document["was_running"]
    assert not (kubectl / "applied").exists()
    calls = [json.loads(line) for line in (kubectl / "calls").read_text().splitlines()]
    assert all(call[1] == "--namespace=serving" for call in calls[1:])


@pytest.mark.slow
def test_pods_not_ready_in_time_are_reported_with_the_undo_command(artifact: Path, trtspec: Run, kubectl: Path) -> None:
    (kubectl / "fails").touch()
    words = ["--target", "kubernetes", "--image", IMAGE, "--target-option", f"artifact={PVC}", "--detach"]
    done = trtspec("deploy", artifact, *words)
    assert done.code == 101
    assert "the pods were not ready in time" in done.err
    assert "kubectl rollout undo" in done.err
    assert trtspec("status", "tiny", "--json").document["state"] == "starting"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "--target kubernetes requires --detach"),
        (["--detach"], "no image given"),
        (["--detach", "--image", IMAGE, "--http-port", "1"], "a cluster's service has its own address and ports"),
        (["--detach", "--image", IMAGE], "is not an artifact location"),
        (
            ["--detach", "--image", IMAGE, f"--target-option=artifact={PVC}", "--target-option=canary-of=old"],
            "deploy applies overlays/plain, which shares no requests",
        ),
    ],
)
def test_invalid_deploy_option_is_an_error(
    words: list[str], said: str, artifact: Path, trtspec: Run, kubectl: Path
) -> None:
    done = trtspec("deploy", artifact, "--target", "kubernetes", *words)
    assert done.code == 1
    assert said in done.err


@pytest.mark.parametrize(
    ("kind", "status", "state"),
    [
        ("Deployment", {"readyReplicas": 2}, "live"),
        ("Deployment", {"readyReplicas": 1}, "unhealthy"),
        ("Deployment", {}, "starting"),
        ("LeaderWorkerSet", {"readyReplicas": 2, "conditions": []}, "live"),
        ("LLMInferenceService", {"conditions": [{"type": "Ready", "status": "True"}]}, "live"),
        ("LLMInferenceService", {"conditions": [{"type": "Ready", "status": "False"}]}, "starting"),
        ("DynamoGraphDeployment", {"conditions": [{"type": "Ready", "status": "True"}]}, "live"),
        ("DynamoGraphDeployment", {}, "starting"),
    ],
)
def test_state_is_parsed_for_each_resource_kind(kind: str, status: dict[str, Any], state: str) -> None:
    assert _parse_state({"kind": kind, "spec": {"replicas": 2}, "status": status}) == state
