# SPDX-License-Identifier: Apache-2.0
"""The docker target: content of its compose file, and docker commands (run by a double that verifies nothing)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import Run
from tests.deployment.manifests import IMAGE, manifest, workload_of
from tests.doubles.fixtures import Installation
from trtspec.core.errors import DeployError
from trtspec.deployment.containers import PORTS, dns_label, dockerfile
from trtspec.deployment.target import find_target


def rendered(
    host: str = "127.0.0.1", ports: dict[str, int] | None = None, timeout_s: float = 300.0, **recipe: Any
) -> dict[str, str]:
    render = find_target("docker").render
    assert render
    options = {"host": host, "ports": ports or {}, "timeout_s": timeout_s, "settings": {"image": IMAGE}}
    return render(workload_of(manifest(**recipe), **options), Path())


def service(**options: Any) -> dict[str, Any]:
    return yaml.safe_load(rendered(**options)["compose.yaml"])["services"]["server"]


@pytest.fixture
def artifact(workplace: Path) -> Path:
    folder = workplace / "build" / "tiny"
    (folder / "model_repository").mkdir(parents=True)
    (folder / "manifest.json").write_bytes(manifest().render())
    return folder


@pytest.fixture
def docker(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a double of docker that is on PATH."""
    root = tmp_path_factory.mktemp("docker")
    Installation(root).add_program("docker", DOCKER_DOUBLE=str(root))
    monkeypatch.setenv("PATH", str(root / "bin"), prepend=":")
    return root


def test_compose_service_has_least_privileges() -> None:
    found = service()
    assert found["image"] == IMAGE
    assert (found["user"], found["read_only"], found["cap_drop"]) == ("1000:1000", True, ["ALL"])
    assert found["security_opt"] == ["no-new-privileges:true"]
    assert [volume["read_only"] for volume in found["volumes"]] == [True]
    assert not {"privileged", "network_mode", "pid", "devices", "cap_add"} & found.keys()
    assert all(place.split(":")[0] in ("/state", "/tmp") for place in found["tmpfs"])


def test_compose_service_binds_loopback_by_default() -> None:
    assert service()["ports"] == [f"127.0.0.1:{port}:{port}" for port in PORTS.values()]
    wide = rendered(host="0.0.0.0", ports={"http": 1234})["compose.yaml"]
    assert "0.0.0.0:1234:8000" in wide
    assert "at 0.0.0.0: http 1234" in wide
    assert "without authentication" in wide


def test_healthcheck_timeout_exceeds_its_request_deadline() -> None:
    found = service()["healthcheck"]
    assert found["test"][:4] == ["CMD", "python3", "-m", "trtspec.deployment.health"]
    assert int(found["timeout"][:-1]) > int(found["test"][-1].partition("=")[2])


def test_stop_grace_period_covers_the_longest_stream() -> None:
    found = service(engine={"max_seq_len": 8192})
    assert int(found["stop_grace_period"][:-1]) > 8192 // 20


def test_gpu_reservation_includes_all_ids_up_to_the_highest_in_the_placement() -> None:
    """A container numbers its GPUs from 0, and the models refer to them by number."""
    parallel, placement = {"model": "./t", "parallel": {"tensor": 2}}, {"placement": {"target": [1, 2]}}
    found = service(backend="llmapi", target=parallel, serving=placement)
    device = found["deploy"]["resources"]["reservations"]["devices"][0]
    assert device == {"driver": "nvidia", "device_ids": ["0", "1", "2"], "capabilities": ["gpu"]}
    assert "deploy" not in service()


def test_memory_limit_and_start_period_grow_with_the_weights() -> None:
    small, large = service(), service(backend="llmapi", weights=100 << 30)
    assert small["mem_limit"] > 1.25 * (1 << 30)
    assert large["mem_limit"] > 100 << 30
    assert large["stop_grace_period"] == small["stop_grace_period"]
    assert int(large["healthcheck"]["start_period"][:-1]) > int(small["healthcheck"]["start_period"][:-1])


@pytest.mark.parametrize(("timeout_s", "expected"), [(10.0, 300), (300.0, 300), (1795.0, 1800)])
def test_container_waits_as_long_as_the_user(timeout_s: float, expected: int) -> None:
    found = service(timeout_s=timeout_s)
    assert f"--timeout={expected}" in found["command"]
    assert found["healthcheck"]["start_period"] == f"{expected}s"


def test_rendering_is_deterministic_without_token_or_artifact_path(tmp_path: Path) -> None:
    first = rendered()
    assert first == rendered()
    assert first["compose.yaml"].count("TRTSPEC_ARTIFACT") == 3
    assert "token" not in {key.lower() for key in service()["environment"]}


def test_compose_command_uses_only_options_of_deploy(trtspec: Run) -> None:
    words = service()["command"]
    assert words[:3] == ["trtspec", "deploy", "/artifact"]
    told = trtspec("deploy", "--help").out
    assert all(word.partition("=")[0] in told for word in words[3:])


def test_dockerfile_names_tags_and_requires_a_base_digest() -> None:
    text = dockerfile(workload_of(manifest(backend="llmapi", engine={"gpu": "h200"})))
    assert "\nARG BASE\nFROM ${BASE}\n" in text
    assert "sha256:..." in text
    assert "USER 1000:1000" in text
    assert "trtspec-" in text
    assert "[embedded]" in dockerfile(workload_of(manifest()))


@pytest.mark.parametrize("name", ["a", "llama-3.1-8b", "UPPER_case", "...", "x" * 63, "-a-"])
def test_dns_labels_are_valid_and_distinct(name: str) -> None:
    from tests.deployment.accepted import LABEL

    label = dns_label(name)
    assert LABEL.fullmatch(f"{label}-epp")
    assert dns_label(name + "b") != label


def test_files_are_rendered_without_docker(artifact: Path, trtspec: Run, workplace: Path) -> None:
    done = trtspec("deploy", artifact, "--target", "docker", "--render", "out", "--image", IMAGE, "--json")
    assert done.document == {
        "format_version": 1,
        "target": "docker",
        "rendered": "out",
        "files": ["Dockerfile", "compose.yaml"],
    }
    assert (workplace / "out" / "compose.yaml").is_file()
    again = trtspec("deploy", artifact, "--target", "docker", "--render", "out", "--image", IMAGE)
    assert (again.code, again.out) == (0, "out/Dockerfile\nout/compose.yaml\n")


@pytest.mark.parametrize(
    ("version", "installed"), [("1.4.0rc1", True), ("1.3.0rc29", True), ("1.2.1", False), ("1.1.0", False)]
)
def test_dockerfile_installs_tensorrt_llm_unless_an_image_has_it(version: str, installed: bool) -> None:
    """No Triton image has TensorRT-LLM 1.3 or later, so that its wheel comes from PyPI, with the MPI it needs."""
    text = dockerfile(workload_of(manifest(backend="llmapi", engine={"version": version})))
    assert (f"'tensorrt_llm=={version}'" in text) is installed
    assert ("apt-get install -y libopenmpi-dev " in text) is installed
    assert ("-trtllm-python-py3" in text) is not installed
    assert ("-py3" in text) is True


def test_render_without_an_image_writes_only_the_dockerfile(artifact: Path, trtspec: Run) -> None:
    done = trtspec("deploy", artifact, "--target", "docker", "--render", "out")
    assert (done.code, done.out) == (0, "out/Dockerfile\n")


def test_render_does_not_overwrite_a_foreign_file(artifact: Path, trtspec: Run, workplace: Path) -> None:
    (workplace / "compose.yaml").write_text("services: {}\n")
    done = trtspec("deploy", artifact, "--target", "docker", "--render", ".", "--image", IMAGE)
    assert done.code == 1
    assert "compose.yaml: not generated by trtspec; refusing to overwrite" in done.err
    assert (workplace / "compose.yaml").read_text() == "services: {}\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--image", "name:tag"], "'name:tag' is not an image with a digest"),
        (["--target-option", "colour=red"], "unknown option 'colour'; known: image"),
        (["--target-option", "image"], "--target-option requires KEY=VALUE, each key once"),
        (["--image", IMAGE, "--target-option", f"image={IMAGE}"], "--target-option requires KEY=VALUE, each key once"),
        (["--host", "nowhere", "--image", IMAGE], "'nowhere' is not a bind address"),
        (["--name", "a/b", "--image", IMAGE], "'a/b' is not a valid deployment name"),
    ],
)
def test_invalid_render_option_is_an_error(words: list[str], said: str, artifact: Path, trtspec: Run) -> None:
    done = trtspec("deploy", artifact, "--target", "docker", "--render", "out", *words)
    assert done.code == 1
    assert said in done.err


def test_local_target_rejects_render_and_image_options(artifact: Path, trtspec: Run) -> None:
    assert "target local does not support --render" in trtspec("deploy", artifact, "--render", "out").err
    assert "target local does not support image" in trtspec("deploy", artifact, "--image", IMAGE).err


def test_missing_docker_error_suggests_render(artifact: Path, trtspec: Run, monkeypatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    done = trtspec("deploy", artifact, "--target", "docker", "--image", IMAGE)
    assert done.code == 1
    assert "docker is not on PATH" in done.err
    assert "--render DIR" in done.err


@pytest.mark.slow
def test_docker_deployment_lifecycle_from_deploy_to_stop(artifact: Path, trtspec: Run, docker: Path) -> None:
    started = trtspec("deploy", artifact, "--target", "docker", "--image", IMAGE, "--detach", "--json")
    assert started.code == 0, started.err
    assert started.document["state"] == "live"
    assert trtspec("status", "tiny", "--json").document["state"] == "live"
    listed = trtspec("ps", "--json").document["deployments"]
    assert [(each["name"], each["target"], each["state"]) for each in listed] == [("tiny", "docker", "live")]
    assert "the server said this" in trtspec("logs", "tiny").out
    assert "already deployed" in trtspec("deploy", artifact, "--target", "docker", "--image", IMAGE).err
    assert "already deployed on docker" in trtspec("deploy", artifact).err
    assert trtspec("stop", "tiny", "--json").document["was_running"]
    assert trtspec("status", "tiny", "--json").document["state"] == "stopped"
    verbs = [json.loads(line)[3] for line in (docker / "calls").read_text().splitlines()]
    assert verbs[0] == "up"
    assert verbs[-1] == "down"


def test_artifact_that_the_container_cannot_read_is_refused(artifact: Path, trtspec: Run, docker: Path) -> None:
    (artifact / "model_repository").chmod(0o700)
    done = trtspec("deploy", artifact, "--target", "docker", "--image", IMAGE, "--detach")
    assert done.code == 1
    assert "tiny/model_repository: the container's user 1000 cannot read the artifact" in done.err
    assert f"chmod -R go+rX {artifact}" in done.err
    assert not (docker / "calls").exists()
    (artifact / "model_repository").chmod(0o755)
    assert trtspec("deploy", artifact, "--target", "docker", "--image", IMAGE, "--detach").code == 0


@pytest.mark.slow
def test_unhealthy_container_is_removed(artifact: Path, trtspec: Run, docker: Path) -> None:
    (docker / "fails").touch()
    done = trtspec("deploy", artifact, "--target", "docker", "--image", IMAGE, "--detach")
    assert done.code == 1
    assert "container is unhealthy" in done.err
    assert not (docker / "state").exists()
    assert trtspec("status", "tiny").code == 1


def test_exited_container_is_dead(artifact: Path, trtspec: Run, docker: Path) -> None:
    assert trtspec("deploy", artifact, "--target", "docker", "--image", IMAGE, "--detach").code == 0
    (docker / "state").write_text("exited")
    assert trtspec("status", "tiny", "--json").document["state"] == "dead"


def test_skipped_gates_are_passed_to_the_container(artifact: Path, trtspec: Run, docker: Path, workplace: Path) -> None:
    words = ["--target", "docker", "--image", IMAGE, "--detach", "--skip-gate", "min_speedup"]
    assert trtspec("deploy", artifact, *words).code == 0
    file = next((workplace / "state").rglob("compose.yaml"))
    assert "--skip-gate=min_speedup" in yaml.safe_load(file.read_text())["services"]["server"]["command"]
    refused = trtspec("deploy", artifact, *words, "--name", "b", "--baseline", "http://127.0.0.1:1")
    assert "does not support --baseline" in refused.err


def test_deploy_targets_are_discovered_and_unknown_target_is_an_error() -> None:
    from trtspec.core.registry import discover

    assert {"docker", "kubernetes", "local"} <= {*discover("trtspec.deployment.targets", "TARGET")}
    with pytest.raises(Exception, match="unknown deploy target 'dokcer'"):
        find_target("dokcer")
    assert issubclass(DeployError, Exception)
