# SPDX-License-Identifier: Apache-2.0
"""Plans for nodes with other tools than this machine's: their versions and drivers are in the steps' keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.fleet.scripted import ScriptedPool
from trtspec.backends.common.steps import CompilePlugins
from trtspec.backends.tensorrt_llm.build import BuildEngine
from trtspec.backends.tensorrt_llm.toolchain import EngineToolchain
from trtspec.core.errors import TrtspecError
from trtspec.fleet.labels import Node, Requirement
from trtspec.kernels.build import LibrarySpec, Toolchain
from trtspec.planning.pipeline import Build, plan_build
from trtspec.planning.remote_tools import RemoteTools
from trtspec.recipe.load import load_matrix

ON_NODE = EngineToolchain("local", "", "1.2.1", "10.14.1.48", "h200", 90, "580.65.06", devices=("0",))
LABELS = {"gpu": "h200", "tensorrt_llm": "1.2.1"}
RECIPE = """
extends: quickstart
name: remote
engine: {backend: tensorrt_llm, version: 1.2.1, gpu: h200}
"""


class Cluster(ScriptedPool):
    """Nodes with given toolchains; counts the calls."""

    def __init__(self, folder: Path, toolchains: Mapping[str, Any], labels: Mapping[str, str] = LABELS) -> None:
        super().__init__([Node(name, labels, devices=1) for name in toolchains], folder)
        self.toolchains, self.calls = toolchains, 0

    def call(self, function: Callable[[], Any], requirement: Requirement) -> dict[str, Any]:
        self.calls += 1
        return {node.name: self.toolchains[node.name] for node in self.nodes() if not node.lacks(requirement)}


def plan(tools: RemoteTools | None, folder: Path, labels: dict[str, str] | None = None, recipe: str = RECIPE) -> Build:
    (folder / "r.yaml").write_text(recipe)
    (loaded,) = load_matrix(folder / "r.yaml")
    return plan_build(loaded, read_all=True, remote_probe=partial(tools.probe, labels or {}) if tools else None)


def engine(build: Build) -> BuildEngine:
    found, *_ = [step for step in build.plan.steps if isinstance(step, BuildEngine)]
    return found


def test_keys_have_the_tools_of_the_node_that_builds(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, {"a": ON_NODE, "b": replace(ON_NODE, devices=("3",))})
    tools = RemoteTools(cluster)
    build = plan(tools, tmp_path)
    assert engine(build).toolchain == ON_NODE
    assert build.artifact.gpu["driver"] == "580.65.06"
    assert build.artifact.lacks == {}
    assert engine(build).key != engine(plan(None, tmp_path)).key
    plan(tools, tmp_path)
    assert cluster.calls == 1


def test_nodes_with_equal_labels_and_other_tools_are_refused(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, {"a": ON_NODE, "b": replace(ON_NODE, driver="590.44.01", tensorrt="10.13.3.9")})
    with pytest.raises(TrtspecError) as caught:
        plan(RemoteTools(cluster), tmp_path)
    assert caught.value.message == (
        "a and b both have gpu=h200 tensorrt_llm=1.2.1 GPUs>=1, but other tools: "
        "tensorrt 10.14.1.48 and 10.13.3.9, driver 580.65.06 and 590.44.01"
    )
    assert "fleet.labels" in (caught.value.hint or "")


def test_without_a_fitting_node_this_machine_is_probed(tmp_path: Path) -> None:
    tools = RemoteTools(Cluster(tmp_path, {"a": ON_NODE}))
    assert engine(plan(tools, tmp_path, {"zone": "elsewhere"})).toolchain.kind == "absent"


def test_plugins_are_planned_with_the_compiler_of_the_nodes(tmp_path: Path) -> None:
    compiler = Toolchain("x86_64", "g++ 99", "", "g++", "")
    library = LibrarySpec(("verify_chain",), (), "0" * 64, compiler)
    recipe = "extends: quickstart\nname: remote\nplugins: [verify_chain]\n"
    build = plan(RemoteTools(Cluster(tmp_path, {"a": library}, {})), tmp_path, recipe=recipe)
    (step,) = [step for step in build.plan.steps if isinstance(step, CompilePlugins)]
    assert step.library == library
