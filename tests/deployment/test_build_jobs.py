# SPDX-License-Identifier: Apache-2.0
"""`trtspec build-job`: jobs that a cluster accepts, with the needs of each cell, and commands that run here."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests._support.pages import trtspec_commands
from tests._support.shapes import make_checkpoint, shapes
from tests.conftest import Run
from tests.deployment import accepted
from tests.deployment.manifests import IMAGE
from tests.store.registries.real import running_docker_registry
from trtspec.core.registry import discover
from trtspec.deployment.build_jobs.job import KINDS
from trtspec.recipe.load import load_matrix

KIND_NAMES = sorted(discover(KINDS, "KIND"))
PUSH = "oci://registry.example/team/{name}:v1"
REMOTE = ("--option", "remote=s3://store/trtspec")
MODELS = ("llama-3.1-8b-instruct", "llama-3.2-1b-instruct")
RECIPE = """\
schema: trtspec.recipe/1
name: pair
target:
  model: meta-llama/Llama-3.1-8B-Instruct
  revision: 0e9e39f249a16976918f6564b8830bc894c89659
speculation:
  method: draft_target
  draft_len: 4
  draft:
    model: meta-llama/Llama-3.2-1B-Instruct
    revision: 9213176726f574b556790deb65791e0c5aa438b6
engine: {backend: tensorrt_llm, version: 1.2.1, gpu: h100}
"""
MATRIX = "matrix: {engine.gpu: [h100, h200], speculation.draft_len: [3, 4]}\n"


@pytest.fixture
def pair(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recipe for two models of the hub, of which the hub's cache has the headers."""
    monkeypatch.setenv("HF_HUB_CACHE", str(workplace / "hub"))
    for shape in shapes():
        if shape.name in MODELS:
            make_checkpoint(shape, shape.place(workplace, workplace / "hub"))
    (path := workplace / "pair.yaml").write_text(RECIPE)
    return path


@pytest.fixture
def matrix(pair: Path) -> Path:
    (path := pair.with_name("matrix.yaml")).write_text(RECIPE + MATRIX)
    return path


def job(trtspec: Run, recipe: Path | str, *words: str, kind: str = "kubernetes") -> list[dict[str, Any]]:
    """Return the documents of a job, all of which a cluster accepts."""
    done = trtspec("build-job", recipe, "--image", IMAGE, "--push", PUSH, "--kind", kind, *words)
    assert done.code == 0, done.err
    assert accepted.problems({"job.yaml": done.out}) == []
    return list(yaml.safe_load_all(done.out))


def of_kind(documents: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [each for each in documents if each["kind"] == kind]


def pod_of(document: dict[str, Any]) -> dict[str, Any]:
    return next(iter(accepted.pods(document)))


def expressions(pod: dict[str, Any]) -> dict[tuple[str, str], list[str]]:
    wanted = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (term,) = wanted["nodeSelectorTerms"]
    return {
        (each["key"].removeprefix("nvidia.com/gpu."), each["operator"]): each["values"]
        for each in term["matchExpressions"]
    }


def test_job_builds_verifies_and_pushes_in_this_order(pair: Path, trtspec: Run) -> None:
    recipe, found = job(trtspec, pair)
    assert (recipe["data"], recipe["immutable"]) == ({"recipe.yaml": RECIPE}, True)
    pod = pod_of(found)
    assert [each["command"] for each in (*pod["initContainers"], *pod["containers"])] == [
        ["trtspec", "build", "/recipe/recipe.yaml"],
        ["trtspec", "verify", "build/pair", "--undecided=fail"],
        ["trtspec", "push", "build/pair", "oci://registry.example/team/pair:v1"],
    ]
    for command in (each["command"] for each in (*pod["initContainers"], *pod["containers"])):
        trtspec_commands()[command[1]].make_context(command[1], command[2:])
    assert found["spec"]["backoffLimit"] == 2
    first = found["spec"]["podFailurePolicy"]["rules"][0]["onExitCodes"]
    assert (first["containerName"], first["values"]) == ("verify", [110, 112])


def test_needs_come_from_the_plan(pair: Path, trtspec: Run) -> None:
    pod = pod_of(job(trtspec, pair)[1])
    needs = pod["initContainers"][0]["resources"]
    assert needs["limits"]["nvidia.com/gpu"] == needs["requests"]["nvidia.com/gpu"] == "1"
    assert "nvidia.com/gpu" not in pod["containers"][0]["resources"]["limits"]
    weights = (8_030_261_248 + 1_235_814_400) * 2 / 2**30  # bfloat16: the sources, checkpoints and engines
    assert 3 * weights < int(pod["volumes"][0]["emptyDir"]["sizeLimit"][:-2]) < 5 * weights
    assert weights < int(needs["limits"]["memory"][:-2]) < 3 * weights
    assert expressions(pod) == {
        ("compute.major", "In"): ["9"],
        ("compute.minor", "In"): ["0"],
        ("memory", "Gt"): [str((79 - 2) << 10)],
        ("memory", "Lt"): [str((79 + 2) << 10)],
    }


def test_each_cell_is_a_job_on_its_own_gpu(matrix: Path, trtspec: Run) -> None:
    jobs = of_kind(job(trtspec, matrix), "Job")
    pods = [pod_of(each) for each in jobs]
    assert [pod["initContainers"][0]["command"][3] for pod in pods] == [
        f"--variant=pair-gpu-{gpu}-draft_len-{length}" for gpu in ("h100", "h200") for length in (3, 4)
    ]
    memories = [int(expressions(pod)["memory", "Gt"][0]) for pod in pods]
    assert memories[0] == memories[1] < 90 << 10 < memories[2] == memories[3]
    assert len({each["metadata"]["name"] for each in jobs}) == 4
    (one,) = of_kind(job(trtspec, matrix, "--variant", "*h200-draft_len-3"), "Job")
    assert "--variant=pair-gpu-h200-draft_len-3" in pod_of(one)["initContainers"][0]["command"]


def test_ray_has_a_group_of_workers_for_each_gpu_with_node_labels(matrix: Path, trtspec: Run) -> None:
    documents = job(trtspec, matrix, *REMOTE, "--option", "workers=1", kind="ray")
    (found,) = of_kind(documents, "RayJob")
    groups = found["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert [each["labels"] for each in groups] == [{"gpu": gpu, "tensorrt_llm": "1.2.1"} for gpu in ("h100", "h200")]
    assert [each["replicas"] for each in groups] == [1, 1]
    for group, mib in zip(groups, (79 << 10, 139 << 10), strict=True):
        pod = pod_of(group)
        assert int(expressions(pod)["memory", "Gt"][0]) < mib < int(expressions(pod)["memory", "Lt"][0])
        assert pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"
        assert {"name": "TRTSPEC_REMOTE", "value": "s3://store/trtspec"} in pod["containers"][0]["env"]
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", found["metadata"]["name"])
    assert len(found["metadata"]["name"]) <= 47
    assert [each["replicas"] for each in groups_of(trtspec, matrix)] == [2, 2]


def groups_of(trtspec: Run, recipe: Path) -> list[dict[str, Any]]:
    (found,) = of_kind(job(trtspec, recipe, *REMOTE, kind="ray"), "RayJob")
    groups: list[dict[str, Any]] = found["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    return groups


def test_ray_command_builds_on_the_cluster_then_pushes_each_cell(matrix: Path, trtspec: Run) -> None:
    (found,) = of_kind(job(trtspec, matrix, *REMOTE, "--variant", "*-h200-*", kind="ray"), "RayJob")
    commands = [shlex.split(each) for each in found["spec"]["entrypoint"].split(" && ")]
    names = [f"pair-gpu-h200-draft_len-{length}" for length in (3, 4)]
    assert commands == [
        ["cd", "/work"],
        [
            "trtspec",
            "build",
            "/recipe/recipe.yaml",
            *(f"--variant={name}" for name in names),
            "--on=ray:$RAY_ADDRESS",
            "--wait-for-nodes=30m",
        ],
        *(["trtspec", "push", f"build/{name}", f"oci://registry.example/team/{name}:v1"] for name in names),
    ]
    for _, name, *words in commands[1:]:
        trtspec_commands()[name].make_context(name, words)


def test_ray_workers_have_a_gpu_only_for_steps_that_need_one(pair: Path, trtspec: Run) -> None:
    """vLLM builds no engine; the Job verifies its artifact on a GPU."""
    pair.write_text(RECIPE.replace("backend: tensorrt_llm, version: 1.2.1", "backend: vllm"))
    (group,) = groups_of(trtspec, pair)
    assert "nvidia.com/gpu" not in json.dumps(group)
    for words, gpus in (((), "1"), (("--option", "verify=no"), None)):
        (found,) = of_kind(job(trtspec, pair, *words), "Job")
        assert pod_of(found)["initContainers"][0]["resources"]["limits"].get("nvidia.com/gpu") == gpus
        assert ("affinity" in pod_of(found)) == (gpus is not None)


def test_ray_accepts_only_its_own_pods_and_the_operator(pair: Path, trtspec: Run) -> None:
    documents = job(trtspec, pair, *REMOTE, kind="ray")
    (policy,), (found,) = of_kind(documents, "NetworkPolicy"), of_kind(documents, "RayJob")
    for template in (found["spec"]["rayClusterSpec"]["headGroupSpec"], *groups_of(trtspec, pair)):
        assert policy["spec"]["podSelector"]["matchLabels"] == template["template"]["metadata"]["labels"]
    own, operator = policy["spec"]["ingress"][0]["from"]
    assert own["podSelector"] == policy["spec"]["podSelector"]
    assert operator["podSelector"]["matchLabels"] == {"app.kubernetes.io/name": "kuberay-operator"}


@pytest.mark.parametrize("kind", KIND_NAMES)
def test_secrets_and_claims_are_named(kind: str, pair: Path, trtspec: Run) -> None:
    names = {
        "pull-secret": "registry",
        "env-secret": "tokens",
        "cache": "store",
        "gpu-product": "NVIDIA-H100-80GB-HBM3",
    }
    words = [word for key, value in names.items() for word in ("--option", f"{key}={value}")]
    documents = job(trtspec, pair, *REMOTE, *words, "--option", "namespace=builds", kind=kind)
    assert {each["metadata"]["namespace"] for each in documents} == {"builds"}
    assert "Secret" not in {each["kind"] for each in documents}
    for pod in (pod for each in documents for pod in accepted.pods(each)):
        assert pod["imagePullSecrets"] == [{"name": "registry"}]
        assert pod["volumes"][0] == {"name": "work", "persistentVolumeClaim": {"claimName": "store"}}
        for each in (*pod["containers"], *pod.get("initContainers", ())):
            assert each["envFrom"] == [{"secretRef": {"name": "tokens"}}]
            assert {"name": "DOCKER_CONFIG", "value": "/credentials"} in each["env"]
    placed = [pod for each in documents for pod in accepted.pods(each) if "affinity" in pod]
    assert [expressions(pod) for pod in placed] == [{("product", "In"): ["NVIDIA-H100-80GB-HBM3"]}]


@pytest.mark.parametrize("kind", KIND_NAMES)
def test_rendering_is_deterministic_and_a_change_has_another_name(kind: str, pair: Path, trtspec: Run) -> None:
    first = job(trtspec, pair, *REMOTE, kind=kind)
    assert job(trtspec, pair, *REMOTE, kind=kind) == first
    pair.write_text(RECIPE.replace("draft_len: 4", "draft_len: 5"))
    second = job(trtspec, pair, *REMOTE, kind=kind)
    assert {each["metadata"]["name"] for each in first}.isdisjoint(each["metadata"]["name"] for each in second)


def test_recipe_with_a_parent_or_overrides_is_merged(pair: Path, trtspec: Run) -> None:
    child = pair.with_name("child.yaml")
    child.write_text("extends: pair.yaml\nname: 'no'\nspeculation: {draft_len: 2}\n" + MATRIX)
    text = job(trtspec, child, "--set", "engine.max_batch_size=2")[0]["data"]["recipe.yaml"]
    (copy := pair.with_name("copy.yaml")).write_text(text)
    recipes = [each.recipe for each in load_matrix(child, ["engine.max_batch_size=2"])]
    assert [each.recipe for each in load_matrix(copy)] == recipes
    assert [each.engine.max_batch_size for each in recipes] == [2] * 4


@pytest.mark.slow
def test_job_on_a_cpu_has_no_gpu_and_runs_on_any_node(recipe: Path, trtspec: Run) -> None:
    (found,) = job(trtspec, recipe, "--option", "files=recipes/tiny")
    pod = pod_of(found)
    assert "affinity" not in pod
    assert "nvidia.com/gpu" not in json.dumps(pod)
    assert pod["initContainers"][0]["command"] == ["trtspec", "build", "/files/recipe.yaml"]
    mount = next(each for each in pod["initContainers"][0]["volumeMounts"] if each["name"] == "recipe")
    assert mount == {"name": "recipe", "mountPath": "/files", "readOnly": True, "subPath": "tiny"}
    (ray,) = of_kind(job(trtspec, recipe, "--option", "files=recipes", *REMOTE, kind="ray"), "RayJob")
    (group,) = ray["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert group["groupName"] == "cpu-0"
    assert "labels" not in group


@pytest.mark.slow
def test_commands_of_a_job_leave_the_artifact_in_the_registry(
    recipe: Path,
    trtspec: Run,
    workplace: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The job's containers run here in order, against a real registry; a build without a job has the same manifest."""
    with running_docker_registry(tmp_path_factory.mktemp("registry")) as host:
        push = f"oci://{host}/team/{{name}}:v1"
        words = ("--image", IMAGE, "--push", push, "--option", "files=recipes", "--option", "verify=no", "--json")
        found = trtspec("build-job", recipe, *words).document["objects"][0]
        work = workplace / "work"
        work.mkdir()
        monkeypatch.chdir(work)
        for each in (*pod_of(found)["initContainers"], *pod_of(found)["containers"]):
            command = [word.replace("/files", str(recipe.parent)) for word in each["command"][1:]]
            done = trtspec(*command)
            assert done.code == 0, done.err
        pulled = trtspec("pull", f"oci://{host}/team/tiny:v1", "--out", "copy", "--json").document
    alone = trtspec("build", recipe, "--out", workplace / "alone", "--json").document
    assert pulled["manifest"] == alone["manifest"]


REFUSED = {
    "two cells, one address": (("--push", "oci://registry.example/team/x:v1"), "with {name} for several cells"),
    "no registry": (("--push", "s3://x/{name}"), "expected oci://HOST/NAME:TAG"),
    "tagged image": (("--image", "name:tag"), "is not an image with a digest"),
    "unknown kind": (("--kind", "helm"), "unknown kind of build job 'helm'"),
    "no team store": (("--kind", "ray"), "requires a team store"),
    "unknown option": (("--option", "replicas=2"), "unknown option 'replicas'"),
    "no label": (("--option", "cache=A"), "option cache: 'A' is not a DNS label"),
    "parent directory": (("--option", "files=a/../b"), "is not CLAIM[/DIR]"),
    "no address": (("--option", "remote=store"), "option remote: 'store' is not an address"),
    "no label value": (("--option", "gpu-product=a b"), "is not a label value"),
    "neither yes nor no": (("--option", "verify=maybe"), "is not yes or no"),
    "no workers": (("--option", "workers=0"), "a number is out of range"),
    "no time": (("--option", "deadline-s=0"), "a number is out of range"),
    "overrides of a claim": (("--option", "files=a", "--set", "engine.max_batch_size=2"), "without --set"),
    "docker in a pod": (("--set", "engine.build.image=a:b"), "engine.build.image runs docker"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_invalid_job_is_refused(what: str, matrix: Path, trtspec: Run) -> None:
    words, said = REFUSED[what]
    required = [
        word
        for option, value in (("--image", IMAGE), ("--push", PUSH))
        if option not in words
        for word in (option, value)
    ]
    refused = trtspec("build-job", matrix, *required, *words)
    assert refused.code == 1
    assert said in refused.err


def test_local_files_and_standard_input_are_refused_with_the_way_out(recipe: Path, trtspec: Run) -> None:
    refused = trtspec("build-job", recipe, "--image", IMAGE, "--push", PUSH)
    assert (refused.code, "the recipe names files of this machine" in refused.err) == (1, True)
    assert "--option files=CLAIM/DIR" in refused.err
    refused = trtspec("build-job", "-", "--image", IMAGE, "--push", PUSH)
    assert "requires a recipe file, not standard input" in refused.err


def test_job_is_written_to_a_file(pair: Path, trtspec: Run, workplace: Path) -> None:
    done = trtspec("build-job", pair, "--image", IMAGE, "--push", PUSH, "-o", "jobs/pair.yaml")
    assert (done.code, done.out, done.err) == (0, "", "jobs/pair.yaml: 1 build\n")
    assert accepted.problems({"job.yaml": (workplace / "jobs/pair.yaml").read_text()}) == []
