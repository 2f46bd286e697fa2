# SPDX-License-Identifier: Apache-2.0
"""The command of a RayJob on a real Ray cluster of this machine, against a real registry.

Ray's job server, which runs the command in a cluster, needs `ray[default]`. Here a shell runs it with the variable that
the job server sets.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Run
from tests.deployment.manifests import IMAGE
from tests.fleet.cluster import RayCluster, ray_environment
from tests.store.registries.real import running_docker_registry
from trtspec.core.ports import free_ports

pytest.importorskip("ray")

COMMAND_S = 240
RECIPE = "extends: quickstart\nname: m\nmatrix: {speculation.draft_len: [2, 3]}\n"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RayCluster]:
    variables = {**ray_environment(tmp_path / "without"), "TRTSPEC_REMOTE": f"file:{tmp_path / 'team'}"}
    started = RayCluster(variables, free_ports(1)[0])
    try:
        started.add(tmp_path / "cache-a", {})
        yield started
    finally:
        started.close()


def test_command_of_a_ray_job_leaves_the_artifacts_in_the_registry(
    cluster: RayCluster, trtspec: Run, workplace: Path, tmp_path: Path
) -> None:
    (recipe := workplace / "m.yaml").write_text(RECIPE)
    (work := tmp_path / "work").mkdir()
    with running_docker_registry(tmp_path / "registry") as host:
        options = ("--option", "files=recipes", "--option", f"remote={cluster.variables['TRTSPEC_REMOTE']}")
        words = ("--image", IMAGE, "--push", f"oci://{host}/team/{{name}}:v1", "--kind", "ray", *options, "--json")
        objects = trtspec("build-job", recipe, *words).document["objects"]
        (found,) = [each for each in objects if each["kind"] == "RayJob"]
        command = found["spec"]["entrypoint"].replace("cd /work", f"cd {work}").replace("/files/", f"{workplace}/")
        variables = {
            **os.environ,
            **cluster.variables,
            "RAY_ADDRESS": cluster.address,
            "TRTSPEC_CACHE": str(tmp_path / "cache-head"),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        }
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            env=variables,
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        pulled = {
            name: trtspec("pull", f"oci://{host}/team/{name}:v1", "--out", tmp_path / name, "--json").document
            for name in ("m-draft_len-2", "m-draft_len-3")
        }
    for name, document in pulled.items():
        alone = trtspec("build", recipe, "--variant", name, "--out", workplace / name, "--json").document
        assert document["manifest"] == alone["manifest"]
